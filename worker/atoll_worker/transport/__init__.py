"""The transport process of a learner or observer: all that must not wait for the user's loop.

It dials the shards, runs the rules of `atoll_worker.rules` and moves values between the network and
the memory that it shares with the training process. It may import `atoll_worker.link`,
`atoll_worker.rules`, `atoll_protos`, grpc and numpy, but no torch and nothing of
`atoll_worker.training`. Its files:

- __main__.py    the program: `python -m atoll_worker.transport`
- transport.py   performs the effects of the rules, and feeds them what happens
- sending.py     offers, seeds, held versions and companions on their way into the lines
- client.py      the control stream of one shard, and its Bulk streams
- bulk.py        the Bulk streams of one session that a process carries
- lanes.py       transfers on their way out, divided over the lanes of a session
- values.py      the values that a process holds: bases, candidates, offers that are formed
- numbers.py     differences, encodings and the shared memory, on numpy arrays
- telemetry.py   a JSON line for each step and event, in the run folder
- ends.py        the way to the training process

Of a learner that has lanes on several hosts:

- hand.py          the lane process of one host
- hands.py         all of them, as the head has them
- coordination.py  what the head and its lane processes wait for, decided on values
- side.py          the messages between them
- stream.py        the TCP stream on which these go, with beats and a limit for silence
"""
