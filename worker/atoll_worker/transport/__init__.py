"""The transport process of a learner or observer: all that must not wait for the user's loop.

It may import `atoll_worker.link`, `atoll_worker.rules`, `atoll_protos`, grpc and numpy, but no
torch and nothing of `atoll_worker.training`. The program is `atoll_worker.transport_process`.

- transport.py       performs the effects of the rules, and feeds them what happens; telemetry
- carrier.py         carries the values over the lanes of a session: bases, differences, encodings
- control_stream.py  the control stream of one shard, and a Bulk stream
"""
