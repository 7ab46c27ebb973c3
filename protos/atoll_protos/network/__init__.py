"""How processes of a job reach each other, and how each knows who the other is.

- addresses    host and port in one word, with an IPv6 address in brackets
- listening    sockets that listen on all addresses, and plain HTTP on them
- credentials  who a process is; certificate, key and authorities, and what is wrong with them
- channels     gRPC channels and servers; why a shard cannot be reached; a deadline that moves
"""
