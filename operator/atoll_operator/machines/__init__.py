"""A job on plain machines: `atoll serve` has its shards, and `atoll join` brings learners.

A machine starts its learners from a bundle, which the server answers to a token, or a person brings
out of a cluster; how the job stands it hears from the shards. gRPC and cryptography are imported
only where a command needs them.

server/           the machine of `atoll serve`
joined/           the machine of `atoll join`
bundle.py         what the learners of a machine start from, a folder; tokens
"""
