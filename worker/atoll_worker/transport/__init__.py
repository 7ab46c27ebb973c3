"""The transport process of a learner or observer: all that must not wait for the user's loop.

It dials the shards, runs the rules of `atoll_worker.rules` and moves values between the network and
the memory that it shares with the training process. It may import `atoll_worker.link`,
`atoll_worker.rules`, `atoll_protos`, grpc and numpy, but no torch and nothing of
`atoll_worker.training`. Its files:

- __main__.py    the program: `python -m atoll_worker.transport`
- transport.py   performs the effects of the rules, and feeds them what happens
- client.py      the gRPC streams to one shard
- lanes.py       transfers on their way out, divided over the lanes of a session
- numbers.py     the values of slices: differences, encodings and the shared memory, on numpy arrays
- telemetry.py   a JSON line for each step and event, in the run folder
"""
