"""What lies between a learner's two processes: one socket and one shared memory.

It imports `atoll_protos` and no other package of the worker.

- messages.py       the messages, as frozen values and as JSON
- socket.py         `Link`, one end of the socket; `TransportEnd`, all that the transport is given
- shared_memory.py  the shared memory: captured values, values to adopt, counters
"""
