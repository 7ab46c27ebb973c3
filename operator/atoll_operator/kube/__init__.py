"""The Kubernetes executor: a manifest becomes pods, and the cluster's state becomes its status.

What belongs here is everything that needs a cluster. What a manifest means belongs in
`atoll_operator.api`, processes of one machine in `atoll_operator.local`, and what a person asks
with own rights in `atoll_operator.client`. Read `reconcile` first, then `plan.planner`.

    serve        the whole operator: watches, election, passes, probes, and a leader's term
    reconcile    one pass: observe (1), plan (2), apply (3), report (4)
    plan/        phase 2: every decision, pure
    effects/     phases 3 and 4: a Plan is carried out and reported
    edges/       one module per outside world: kopf, API server, watches, shards, clock
    observed/    what was seen and is remembered, as values
    metrics      the operator's metrics
    settings     what one install is configured with
    names        annotations, field managers, children's names, roles, ports

pyproject.toml has the order in which they import each other. `plan` imports no time, network or
cluster.
"""
