"""Which manifest is in force, whose job it is, and what the job is doing.

accepted     the manifest that a job runs with
elsewhere    a job whose syncer lives in another cluster, and what the others are told
restore      whose state a new job takes up, and whether it fits
phase        suspended, running, complete or failed
"""
