"""Every decision of a pass: functions of an observation that return values, without any I/O.

What belongs here: what is to be done about a job, with the reason in words. What does not: calls,
clocks, memory (those are in `atoll_operator.kube`), and how raw objects are read (`objects`). From
the top:

    planner        the plan of one pass: what else must be looked at, all parts, when the next comes
    applied        children that are applied, reverted, deleted or refused, and what drifted
    restarts       pods that are deleted with their grace, and how a template reaches running pods
    status         what the status has, which learners start, and whether it is worth a write
    actions        what a pass does and says, as values: the Plan, Events
    situation      phase and placement of a job, on which all else rests; sessions, owners of slots
    children       the objects that a job owns, from a situation
    accepted       the manifest that a job runs with, and which live pod templates stay
    pods           the pod templates of shards, learners and evaluators; regions' overrides
    certificates   which certificates it has, and what is to be made of them
    replacements   lost nodes and storms; pods that are made again elsewhere, learners that crash
    phase          suspended, running, complete or failed, at home and in other clusters
"""
