"""Where a shard meets others: gRPC, the operator's files, and commands for a person.

`pyproject.toml` checks that imports go downwards in this list:

    service           sessions, Status, the registrar's calls; the Bulk streams
    job_files         the job's present length and learners, read from the operator's files
    admission         who calls, by the certificate of its peer, and who may call what
    registrar_client  calls of the other shards to the registrar
    exporting         an export of a job that trains, from what its shards give
    replay            recorded merges, computed again
    status_lines      the Status of all shards, for a person at a terminal
"""
