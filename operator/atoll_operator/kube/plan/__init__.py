"""Every decision of a pass: functions of an observation that return values, without any I/O.

What belongs here: what is to be done about a job, with the reason in words. What does not: calls,
clocks, memory (those are in `atoll_operator.kube`), and how raw objects are read (`objects`).
Modules here import values and names of `atoll_operator.kube`, `atoll_operator.api` and
`atoll_protos`, and nothing of `edges`; no time, randomness, network or cluster.

    planner      the plan of one pass, made from all of the following
    pauses       when the next pass comes, and which jobs are steady
    restarts     which pods are deleted with their grace, and which shards wait
    changes      which children are applied, reverted, deleted or refused
    actions      what a pass does and says, as values: the Plan
    status       what the status says, and whether it is worth a write
    problems     what is wrong with pods and claims, in sentences
    situation    phase and placement of a job, on which all else rests
    rollout      how a new template reaches running pods
    elsewhere    a job whose syncer lives in another cluster, and what the others are told
    brought      the Secret that a person brings into a cluster without the syncer
    exposure     how other clusters reach the shards
    starts       learners that start, for which nothing is degraded
    readiness    which pods of learners are Ready: those in training
    sessions     whose session is dead, and who owns a slot (SetOwner)
    children     the objects that a job owns
    certificates which certificates a job has, and what is to be made of them now
    budgets      how many pods a drain may evict at a time
    configs      accounts and ConfigMaps of a job's pods
    owner        what all children have from the job: labels, selectors, metadata
    accepted     the manifest that a job runs with
    rendering    which pod templates stay as they were rendered, and until when
    hosts        the pod template of a learner of several hosts
    pods         the pod templates of those objects
    restore      whose state a new job takes up, and whether it fits
    overrides    what a region changes in its learners' template
    drift        where a live object differs from what would be applied
    ownership    whose an object is that has the name of a child
    suspects     learners that crash again and again where they are, or hang
    exclusions   the nodes that templates exclude
    replacements which pods are made again elsewhere
    nodes        lost nodes and storms
    phase        suspended, running, complete or failed
    events       Events of a job
    kept         results that are asked for again with the same input
"""
