"""How processes of a job reach each other, and how each knows who the other is.

- addresses        host and port in one word, with an IPv6 address in brackets
- listening        sockets that listen on all addresses, and plain HTTP on them
- identity         who a process is, as its certificate states it
- credentials      certificate, key and authorities of a process, and what is wrong with them
- channels         gRPC channels and servers as both ends make them
- diagnosis        why a shard cannot be reached although something answers
- services         clients and handlers of the services of v1/atoll.proto
- deadline         a deadline that moves, for the event loop of either side
"""
