"""The transport process of a learner or observer: all that must not wait for the user's loop.

It may import `atoll_worker.link`, `atoll_worker.rules`, `atoll_protos`, grpc and numpy, but no
torch and nothing of `atoll_worker.training`. The program is `atoll_worker.transport_process`. Here
is all that a learner on one host with one lane needs; `atoll_worker.hosts` has the rest.

- transport.py       performs the effects of the rules, and feeds them what happens
- carrier.py         carries the values: offers, seeds, held versions, companions, Publishes
- control_stream.py  the control stream of one shard
- bulk.py            one Bulk stream
- held_values.py     the values that a process holds: bases, candidates, offers that are formed
- numbers.py         differences, encodings and the shared memory, on numpy arrays
- telemetry.py       a JSON line for each step and event, in the run folder
"""
