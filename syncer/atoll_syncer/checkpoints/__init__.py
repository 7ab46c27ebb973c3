"""Checkpoints of a run, and records of merges: what a run leaves for other programs and runs.

May import storage and model; never the rules or the driver.

    places        where they lie: a folder that all shards reach
    bucket_place  likewise, a folder of a bucket
    opening       which of both a URL names
    copies        parts of checkpoints: what is in them, which are whole, which go
    rendering     writes the model of a whole checkpoint beside it
    restoring     reads a checkpoint, however its model is cut
    merge_records  what versions were made from, for a replay
"""
