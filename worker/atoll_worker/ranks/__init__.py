"""One learner of many processes: what a rank holds of the model, and how values get to it.

Each rank holds what its parallelism gives it of every tensor (the whole of it, some rows, nothing).
When values move is decided by the transport of the head, rank 0, and carried out in `training`.

- group.py           what the ranks of a learner do together, how they meet, their data states
- control.py         the head's commands, at the same boundary on every rank, as broadcasts
- lifeline.py        streams on which a rank notices that another one has ended or stands still
- redistribution.py  what each rank holds, and how a slice moves between the head and the others
"""
