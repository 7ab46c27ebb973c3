"""The API: one definition of every field of a job, from which everything else derives.

What belongs here: what a manifest may say, what a status says, and the decisions that both
executors share. All of it is pure: values in, values out. It may import `atoll_protos`, pydantic
and PyYAML, but no clock, network, disk or process, and neither executor.

    presets.py      the published systems that spec.sync.preset names: one table of settings
    words.py        why a process ended, from the end of its log
    model.py        what all models of a manifest have in common
    launching.py    commands that start the processes of a learner
    sync.py         the models of `spec.sync`
    pods.py         the models of pod templates and of `podOverrides`
    learners.py     the models of `spec.learner` and `spec.regions`
    syncer.py       the model of `spec.syncer`
    parts.py        the models of the smaller parts of `spec`: evaluator, failure, export, ...
    spec.py         `spec` as a whole and the job; how a manifest becomes a job
    rules.py        conditions over several fields, in Python and in CEL
    manifest.py     YAML, --set changes, preset, models, rules -> Job
    support.py      what a manifest may say but this version cannot do yet
    runfile.py      Job -> run file
    reasons.py      what a condition can say: the table of reasons, meanings and remedies
    shown.py        a part of a status; the model of a condition
    facts.py        what the conditions are decided from
    conditions.py   how the conditions are decided
    status.py       the models of `status`; how a status comes to be
    crd.py          the CustomResourceDefinition, made from the models
    docs.py         docs/spec.md and the table of conditions, made from the models
"""
