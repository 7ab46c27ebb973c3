"""The Kubernetes executor: a manifest becomes pods, and the cluster's state becomes its status.

What belongs here is everything that needs a cluster. What a manifest means belongs in
`atoll_operator.api`, processes of one machine in `atoll_operator.local`; this package imports the
former and never the latter. Read `reconcile` first, then `plan.planner`.

    serve        the whole operator: watches, election, passes, probes
    term         what a replica has while it leads
    reconcile    one pass: observe, plan, apply, report
    observe      phase 1: what the watches and the shards show becomes an Observation
    plan/        phase 2: every decision, pure
    apply        phase 3: carries a Plan out, in its order
    trial        what the API server would refuse, asked before it is applied
    secrets      reads and writes the Secrets with a job's certificates
    repair       phase 3: the sequences for a pod on a lost node
    report       phase 4: status and Events
    recorder     Events: one object for what happens again and again
    edges/       one module per outside world: kopf, API server, watches, shards, HTTP, clock
    election     who leads: what the Lease means, pure
    cache        the API server's objects, as the watches show them
    memory       what is remembered of a job between two passes
    health       what the probes answer
    notes        what the operator has noted in annotations, whatever has become of it
    objects      how raw objects of the API server are read
    observation  what a pass has seen, as frozen values
    metrics      the operator's own metrics
    shards       where a job's shards are, for `atoll export` and `top`; no part of the operator
    credentials  a region's Secret, for `atoll credentials`; no part of the operator
    policies     NetworkPolicies of a job's own, for `atoll network-policies`; as credentials
    logs         the logs of a job's pods, for `atoll logs`; no part of the operator
    person       how a person reaches a cluster, for these three; no part of the operator
    settings     what one install is configured with
    names        annotations, field managers, children's names, roles, ports

Imports go downwards in this order: shards, credentials, policies; serve, logs; term; reconcile;
observe, apply, report; repair, trial, secrets; recorder; edges; memory, plan; objects; notes;
health, observation; cache, election; metrics, settings, names, person.
`plan` imports no time, network or cluster (import-linter checks all of this).
"""
