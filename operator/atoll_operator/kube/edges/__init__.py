"""One thin module per outside world; each turns its world into values and calls, deciding nothing.

    api        the Kubernetes API: raw objects, server-side apply, and the limit on its requests
    watches    collections, followed for ever by list and watch: which, and who is notified
    jobs       the jobs that people write, followed by list and kopf
    polls      shards: which is asked when; Status and SetOwner over gRPC
    lease      the Lease: which replica leads
    election   what the Lease means, pure, and the fence before every write
    queue      the clock: which job gets a pass when

kopf is imported in `jobs` alone, `kubernetes` in `api` and `serve`, grpc in `polls`.
"""
