"""One learner of a job: the user's training process, and its transport process.

The public names are in the package `atoll`; what is here may change in any release. A learner is
two processes. The training process is the user's script, with `Learner` in its loop. The transport
process runs the protocol's rules and speaks with the shards of the syncer. They share a socket and
a memory (link/socket.py says how and why).

Nothing here imports the operator or the syncer; all three programs share `atoll_protos`. The rules
that the code cites by number are those of docs/protocol.md. Files and folders, from the user's loop
outwards:

- learner.py    the public Learner
- observer.py   the public Observer
- settings.py   which learner of which job this process is, or that it is alone
- presence.py   the one open Learner of this process
- errors.py     errors, and how a script exits with their codes
- __main__.py   the command `atoll-worker module:function`
- launcher/     `atoll-worker launch`: starts the processes of one learner
- training/     the training process: the model, and copies out of and into it
- ranks/        one learner of many processes: how values get to the shards of each
- link/         what lies between the two processes: messages and shared memory
- rules/        what a learner does in the protocol, without I/O
- transport/    the other process: gRPC, the numbers of offers, telemetry
"""
