"""The Kubernetes executor: a manifest becomes pods, and the cluster's state becomes its status.

What belongs here is everything that needs a cluster. What a manifest means belongs in
`atoll_operator.api`, processes of one machine in `atoll_operator.local`, and what a person asks
with own rights in `atoll_operator.client`. Read `reconcile` first, then `plan.planner`.

    serve        the whole operator: watches, election, passes, probes
    term         what a replica has while it leads
    reconcile    one pass: observe, plan, apply, report
    observe      phase 1: what the watches and the shards show becomes an Observation
    plan/        phase 2: every decision, pure
    effects/     phases 3 and 4: a Plan is carried out and reported
    edges/       one module per outside world: kopf, API server, watches, shards, HTTP, clock
    observed/    what was seen and is remembered, as values
    election     who leads: what the Lease means, pure
    health       what the probes answer
    metrics      the operator's own metrics
    settings     what one install is configured with
    names        annotations, field managers, children's names, roles, ports

pyproject.toml has the order in which they import each other. `plan` imports no time, network or
cluster.
"""
