"""One learner of many processes: what a rank holds of the model, and how values get to it.

Each rank holds what its parallelism gives it of every tensor (the whole of it, some rows, nothing).
When values move is decided by the transport of the head, rank 0, and carried out in `training`.

- group.py           what the ranks of a learner do together, and how they meet
- control.py         the head's commands, at the same boundary on every rank, without torch
- broadcasts.py      how the head's words come to the others, as broadcasts
- lifeline.py        streams on which a rank notices that another one has ended or stands still
- peers.py           which rank is lost, from what has come on those streams
- redistribution.py  moves the values of a slice between the ranks, in both directions
- owners.py          which ranks own the values on their way to and from the wire, without torch
- boxes.py           which box of a tensor this process holds, as DTensor and FSDP2 say it
- whole_tensors.py   whole tensors for the head, one at a time, for an export
- data_states.py     the data states of the ranks as one, and back
- together.py        a step of the opening on all ranks: all go on, or all are refused
- blocks.py          which rank gives which elements to which, without torch
"""
