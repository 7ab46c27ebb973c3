"""The API: one definition of every field of a job, from which everything else derives.

What belongs here: what a manifest may say, what a status says, and the decisions that both
executors share. All of it is pure: values in, values out. It may import `atoll_protos`, pydantic
and PyYAML, but no clock, network, disk or process, and neither executor.

    presets.py      the published systems that spec.sync.preset names: one table of settings
    spec.py         the models of `spec`; how a manifest becomes a job
    rules.py        conditions over several fields, in Python and in CEL
    manifest.py     YAML, --set changes, preset, models, rules -> Job
    support.py      what a manifest may say but this version cannot do yet
    runfile.py      Job -> run file
    conditions.py   the ten conditions, and the table of reasons and remedies
    status.py       the models of `status`; how a status comes to be
    crd.py          the CustomResourceDefinition, made from the models
    docs.py         docs/spec.md and the table of conditions, made from the models
"""
