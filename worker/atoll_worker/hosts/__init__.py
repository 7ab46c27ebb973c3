"""A learner of several lanes or hosts (docs/protocol.md, "Learners of several processes").

Values of the model never pass through the channel between its processes (atoll.proto has the
messages). The package may import what `atoll_worker.transport` may, and that package.

- lane_process.py  the lane process of one host
- head.py          the carrier of the head, and what it knows of all lane processes
- coordination.py  what the head waits for, decided on values
- lanes.py         transfers divided over the lanes of a session, and their Bulk streams
- side.py          the side channel: a gRPC stream with the job's certificates
"""
