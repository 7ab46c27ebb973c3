"""What a pass does: a Plan is carried out and reported, in the order that it gives.

    apply        carries a Plan out: trial, applications, and the repair of a lost node's pods
    secrets      reads and writes the Secrets with a job's certificates
    report       status, and Events: one object for what happens again and again

Here is decided only what the answer to one call asks of the next.
"""
