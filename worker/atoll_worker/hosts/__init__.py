"""A learner that has several lanes, or several hosts: what a learner of one lane never meets.

Every slice is divided over the lanes of a session. On several hosts each has a process that carries
its share: the transport process of the first one, which knows the rules, and on each further host a
*lane process*. Values of the model never pass through the channel between them (atoll.proto has the
messages). The package may import what `atoll_worker.transport` may, and that package.

- lane_process.py  the lane process of one host
- head.py          the carrier of the head, and what it knows of all lane processes
- coordination.py  what the head waits for, decided on values
- lanes.py         transfers divided over the lanes of a session, and their Bulk streams
- side.py          the side channel: a gRPC stream with the job's certificates
"""
