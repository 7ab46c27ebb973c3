"""What lies between a learner's two processes: one socket and one shared memory.

Both ends are here, because they must agree about every byte. The package knows neither gRPC nor
the model, and nothing of the rules: it imports `atoll_protos` and no other package of the worker.
How the two processes work together is described in socket.py. Its files:

- messages.py   the messages, as frozen values
- codec.py      a message to bytes and back
- socket.py     `Link`, one end of the socket; `TransportEnd`, all that the transport is given
- memory.py     the shared memory: captured values, values to adopt, counters
"""
