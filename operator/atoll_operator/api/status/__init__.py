"""What a status says of a job, and why.

conditions.py       how the conditions are decided
condition_facts.py  what they are decided from
reasons.py          what a condition can say: the table of reasons, meanings and remedies
seen_status.py      how the other fields of a status come to be
job_status.py       the models of `status`, and their reader
crash_reason.py     why a process ended, from the end of its log
"""
