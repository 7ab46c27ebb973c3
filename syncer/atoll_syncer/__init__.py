"""One shard of the syncer: rounds, quorum and grace, the merge, and the durable log.

Shard 0 is the registrar as well. Imports go downwards in this list only; pyproject.toml checks it:

    __main__           `atoll-syncer`: flags and environment, and a machine of real parts
    serving            the life of one process: wait for the shard, restore, serve, stop
    edges/             gRPC, the operator's files, and commands for a person
    driver             performs the effects of the rules, in order
    duties/            its tasks and threads, the tape, metrics, and what it keeps and removes
    rules/             what happens when: the state machine of a shard, without I/O
    numbers/           values: merge, outer step, staged offers, versions (numpy)
    checkpoints/       copies of what shards have stored, and records of merges
    storage/           disk: the log, objects, export, tape, and the takeover of a shard
    model/             values that all of these share
"""
