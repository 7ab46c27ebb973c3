"""The contract of the three programs: what two of them must do or name alike.

Belongs here: messages, the run file, names, the fragment layout, frames, codecs, and what every
process sets up first. Does not: rules of the protocol, clocks, disks, servers, Kubernetes; and
only `tensors` may import torch, which the operator's image lacks.

- v1/atoll.proto   the messages; beside it the code that the pinned generator wrote from them
- names.py         slots, exit codes, environment variables, labels
- errors.py        the user's errors: field, problem, remedy
- run.py           the run file
- layout.py        which part of which tensor belongs to which slice
- frames.py        raw frames of the Bulk stream
- wire.py          the run file's wire types as encodings
- tensors.py       tensor <-> bytes, codecs
- channels.py      gRPC options that both ends share
- allocator.py     the allocator, tuned before torch and grpc are imported
- logs.py          JSON logs
"""
