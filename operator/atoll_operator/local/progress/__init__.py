"""How far a run is.

machines.py      the machines of `atoll serve`: where they are, and what goes to and fro
poller.py        asks the shards for their status over gRPC
local_status.py  their answers become the status and its conditions
last_status.py   the last status of a run folder, and whether its run can continue
"""
