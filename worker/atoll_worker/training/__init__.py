"""The training process's side of a learner: what happens at a step boundary.

This package knows torch and the link, but neither gRPC nor the protocol's rules: the transport
process decides what is copied and when, and sends commands.

- logged_values.py  what a script reports and logs: losses, values by name
- boundary.py      the commands of a boundary; counts, the cursor, the data state; no torch
- replica.py       a model and what it shares with the transport process, on each rank; the opening
- device_check.py  ends a learner whose device is broken, or whose driver hangs
"""
