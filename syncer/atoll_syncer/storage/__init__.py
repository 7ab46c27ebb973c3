"""What outlives a process: the log, tensors as objects, the export, the tape.

May import model, and numpy where values are written; never the rules, numbers or the driver.
Every module raises the errors of `store`: full and unavailable are worth trying again, missing
and corrupt are losses.

    files         durable names and bytes: the store, files, folders
    objects       arrays as safetensors bytes, and back
    object_store  a folder of a bucket as a store; how buckets are opened, and how they fail
    journal       one shard's log, its checksums and snapshots; its heartbeat
    versions      one version of a slice as an object; data states
    tape          the event tape: one JSON line per event
    export        the finished model in Hugging Face layout, in a folder or a bucket
    store_check   whether a bucket does what a shard needs of its store
    takeover      a process waits until it may take a shard over
"""
