"""One thin module per outside world; each turns its world into values and calls, deciding nothing.

    api        the Kubernetes API: raw objects, server-side apply, deletes with a UID
    connection how the operator connects to the API server
    reflector  one collection, followed for ever by list and watch
    jobs       the jobs that people write, followed by list and kopf
    namespaces which of the namespaces that are served are gone
    watches    which collections are followed, and who is told of a change
    syncers    shards: Status and SetOwner over gRPC
    lease      the Lease: which replica leads
    fence      the clock that stands before every write
    limiter    the operator's own limit on requests to the API server
    polls      the clock of the shards: who is asked when
    http       probes and Prometheus
    queue      the clock: which job gets a pass when

kopf is imported in `jobs` alone, `kubernetes` in `api` and `connection`, grpc in `syncers`,
aiohttp's server in `http`.
"""
