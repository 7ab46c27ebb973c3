"""What a manifest says: fields, presets, rules; and what the processes of a job read of it.

parsing.py         YAML, --set changes, preset, models, rules -> Job
unsupported.py     what a manifest may say and an executor cannot do
process_inputs.py  Job -> run file, list of learners, length
field_rules.py     conditions over several fields, in Python and in CEL
spec.py            `spec` as a whole and the job; how a manifest becomes a job
learner_fields.py  the models of `spec.learner` and `spec.regions`
syncer_fields.py   the model of `spec.syncer`
smaller_fields.py  the models of the smaller parts of `spec`: evaluator, failure, export, ...
sync_fields.py     the models of `spec.sync`
pod_fields.py      the models of pod templates and of `podOverrides`
presets.py         the published systems that spec.sync.preset names: one table of settings
launching.py       commands that start the processes of a learner
yaml_text.py       YAML that people write
model_base.py      what all models of a manifest have in common
"""
