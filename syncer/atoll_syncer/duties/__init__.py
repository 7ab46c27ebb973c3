"""What a shard does besides its rules: tasks and threads, and what it keeps and writes.

`pyproject.toml` checks that imports go downwards in this list:

    checkpointing  parts of checkpoints, and the removal of older ones; a run begins with one
    storing        records wait for the log, values are read back, snapshots, the export, heartbeats
    recording      the event tape, and what merges are made from, for a replay
    port           what a process is given, and what one session is to be sent, and its lanes
    background     its tasks and threads, and retries of the store
    metrics        what Prometheus reads
"""
