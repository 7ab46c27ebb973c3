"""Every decision of a pass: functions of an observation that return values, without any I/O.

What belongs here: what is to be done about a job, with the reason in words. What does not: calls,
clocks, memory (those are in `atoll_operator.kube`), and how raw objects are read (`objects`). From
the top:

    planner        the plan of one pass, made from all of the following
    inquiry        first: which manifest is in force, and what else has to be looked at
    pauses         when the next pass comes, and which jobs are steady
    changes/       what is changed in the cluster: children, templates, pods
    actions        what a pass does and says, as values: the Plan
    status/        what people and other programs see of the job
    situation      phase and placement of a job, on which all else rests
    workloads/     the objects that a job owns
    certificates/  which certificates it has, and what is to be made of them
    losses/        lost nodes, crashing learners, dead sessions
    manifest/      which manifest is in force, and what the job is doing
    owner          what all children have from the job: labels, selectors, metadata
    shard_processes  which pod of a shard serves, and which waits
"""
