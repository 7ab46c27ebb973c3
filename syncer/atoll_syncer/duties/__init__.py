"""What a shard does besides its rules: tasks and threads, and what it keeps and writes.

`pyproject.toml` checks that imports go downwards in this list:

    beating            says that the process lives, and ends one that has the shard no more
    checkpointing      parts of checkpoints, and the removal of older ones
    reading            values are read back, slice after slice
    restoring          a run begins with a checkpoint
    tidying            snapshots of the log, and the removal of what nobody needs
    keeping            what is stored beside versions: data states, companion, export
    keeping_merges     what merges are made from, for a replay
    log_queue          records that wait for the log, and replies that wait for them
    recording          the event tape, and the bytes that its lines tell of
    outside            what a process is given: clock, threads, store, values, tape, ...
    port               what one session is to be sent, and its lanes
    background         its tasks and threads, and retries of the store
    metrics            what Prometheus reads
"""
