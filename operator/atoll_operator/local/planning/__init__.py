"""What is to run on this machine, before anything does.

process_plan.py  the processes of a job, in place of pods
gpus.py          which GPUs each of them gets
run_manifest.py  the manifest of a script, and the one that a run folder keeps
edits.py         what a person changes of it while it runs
"""
