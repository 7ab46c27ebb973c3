"""One thin module per outside world; each turns its world into values and calls, deciding nothing.

    api        the Kubernetes API: raw objects, server-side apply, deletes with a UID
    handlers   kopf: its watches feed keys of jobs
    watches    nodes and Leases: list and watch
    syncers    shards: Status and SetOwner over gRPC
    http       probes and Prometheus
    queue      the clock: which job gets a pass when

kopf is imported in `handlers` alone, `kubernetes` in `api`, grpc in `syncers`, aiohttp's server in
`http`. Modules here may import `memory`, `plan` and what lies below them, and not each other's
worlds, except that `watches` uses `api`.
"""
