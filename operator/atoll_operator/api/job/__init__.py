"""What a manifest says: fields, presets, rules; and what the processes of a job read of it.

parsing.py         YAML, --set changes, models, rules -> Job; what an executor cannot do
process_inputs.py  Job -> run file, list of learners, length
field_rules.py     conditions over several fields, in Python and in CEL
spec.py            `spec` as a whole and the job; how a manifest becomes a job
sync_fields.py     the models of `spec.sync`, and the published presets
fields.py          the models of the other parts: learner, regions, syncer, pod templates, ...
"""
