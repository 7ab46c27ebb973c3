"""What a pass has seen, as values, and what is remembered from one pass to the next.

    memory       what is remembered of a job between two passes
    objects      how raw objects of the API server are read, with quantities and our annotations
    observation  what a pass has seen, as frozen values
    cache        the API server's objects, as the watches show them, and a ledger of children

No time, network or cluster: values and `now` are arguments.
"""
