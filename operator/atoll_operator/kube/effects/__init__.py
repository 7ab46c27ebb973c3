"""What a pass does: a Plan is carried out and reported, in the order that it gives.

    apply        carries a Plan out
    repair       the sequences for a pod on a lost node
    secrets      reads and writes the Secrets with a job's certificates
    trial        what the API server would refuse, asked before it is applied
    report       status and Events
    recorder     Events: one object for what happens again and again

Here is decided only what the answer to one call asks of the next.
"""
