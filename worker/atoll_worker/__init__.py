"""One learner of a job: the user's training process, and its transport process.

The public names are in the package `atoll`; what is here may change in any release. The rules that
the code cites by number are those of docs/protocol.md. From the user's loop outwards:

- learner.py, observer.py   the public Learner and Observer
- job.py        which learner of which job this process is, or that it is alone
- errors.py     errors, and how a script exits with their codes
- __main__.py   the command `atoll-worker module:function`
- launcher/     `atoll-worker launch`: starts the processes of one learner
- training/     the training process: what happens at a step boundary
- model/        the user's model: its tensors, copies of them, and the export
- script/       what is checked and taken over of the user's script
- ranks/        one learner of many processes: how values get to the shards of each
- link/         what lies between the two processes: messages and shared memory
- rules/        what a learner does in the protocol, without I/O
- transport/    the other process: gRPC, numbers of offers, telemetry
- transport_process.py   `python -m atoll_worker.transport_process`: its program
"""
