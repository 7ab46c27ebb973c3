"""What a status says of a job, and why.

conditions.py       what the conditions say, and the facts that they are decided from
reasons.py          what a condition can say: the table of reasons, meanings and remedies
job_status.py       the models of `status`, their reader, and how they are made of replies
crash_reason.py     why a process ended, from the end of its log
"""
