"""One shard of the syncer: rounds, quorum and grace, the merge, and the durable log.

A process of this package owns one shard of every fragment of the model. Learners connect to it
and hand in offers; it merges them, makes each result durable, and publishes it. Shard 0 is the
registrar as well. Imports go downwards in this list only; pyproject.toml checks it:

    __main__           `atoll-syncer`: flags and environment, and a machine of real parts
    serving            the life of one process: wait for the shard, restore, serve, stop
    handshakes         failed handshakes, from what gRPC's core says of them
    service            the gRPC edge: sessions, Status, the registrar's calls
    bulk               the gRPC edge of the Bulk streams: lanes, and the transfers on them
    port               what one session is to be sent, and its lanes
    doorkeeper         who calls, by the certificate of each call's peer
    exporting          an export of a job that trains, as an observer takes it
    asking             what all shards say, for a person at a terminal
    job_files          the job's present length and learners, read from the operator's files
    registrar_client   calls of the other shards to the registrar
    admission          who may call what, by the identity in a peer's certificate
    driver             performs the effects of the rules, in order
    tidying            snapshots of the log, and the removal of what nobody needs
    keeping            what is stored beside versions: data states, companion, export
    recording          the event tape, and the bytes that its lines tell of
    beating            the heartbeat, and whether another process has followed
    outside            the interfaces that the driver is given: clock, store, values, tape, ...
    background         its tasks and threads, and retries of the store
    metrics            what Prometheus reads
    rules/             what happens when: the state machine of a shard, without I/O
    numbers/           tensors: merge, outer step, staged offers, versions (torch)
    storage/           disk: the log, objects, export, tape, and the takeover of a shard
    model/             values that all of these share
"""
