"""What outlives a process: the log, tensors as objects, the export, the tape.

May import model, and numpy where values are written; never the rules, numbers or the driver.
Every module raises the errors of `store`: full and unavailable are worth trying again, missing
and corrupt are losses.

    store      durable names and bytes: conditional create, and objects named by their digest
    folders    folders and names that survive a power cut
    files      files that appear whole under their name
    checksums  JSON documents with a checksum
    buckets    how buckets are opened, and how they fail
    object_store  a folder of a bucket as a store
    objects    arrays as safetensors bytes, and back
    journal    one shard's log: read in order, appended conditionally; its heartbeat
    snapshots  what a start needs of a long log, and the removal of entries before it
    versions   one version of a slice as an object, and the removal of old ones
    data_states  what learners' scripts keep with their cursors, an object for each commit
    tape       the event tape: one JSON line per event
    companions  parts of a companion as objects, and a whole one as a file
    export     the finished model in Hugging Face layout
    bucket_export  the export below a URL of a bucket
    store_check    whether a bucket does what a shard needs of its store
    takeover   a process waits until it may take a shard over
"""
