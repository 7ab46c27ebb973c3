"""Where a shard meets others: gRPC, the operator's files, and commands for a person.

`pyproject.toml` checks that imports go downwards in this list:

    service            sessions, Status, the registrar's calls
    bulk               the Bulk streams: lanes, and the transfers on them
    job_files          the job's present length and learners, read from the operator's files
    doorkeeper         who calls, by the certificate of each call's peer
    admission          who may call what, by the identity in a peer's certificate
    registrar_client   calls of the other shards to the registrar
    exporting          an export of a job that trains, from what its shards give
    replaying          recorded merges, computed again
    status_lines       the Status of all shards, for a person at a terminal
"""
