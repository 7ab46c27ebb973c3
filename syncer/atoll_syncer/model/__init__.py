"""Values of a shard: what it knows, what its log holds, and what it asks of its driver.

Everything here is data, with functions that compute from data alone. Nothing in this folder does
I/O, reads a clock, or imports the folders above it (rules, numbers, storage). Only `slices`
imports torch, and only numbers and storage import `slices`.

    state      all that a shard knows, in parts that one module of rules writes each
    log        the entries of the durable log
    snapshot   a history as plain JSON values, and back
    history    what the entries of a log add up to
    effects    what the rules ask of the driver; refusals with their remedies
    roster     slots and sessions: who is connected, and what each slot does
    training   the slots that are Training, kept from input to input
    round      one attempt to merge one slice, and the decision to close it
    clock      the job's clock as one shard counts it, and which slices are due
    grace      how long a round waits for more than its quorum, and who is too slow
    momentum   the momentum of an outer step, which may follow the merges that were
    recovery   what a shard has lost, and who may give it back
    slices     the tensors of one slice between two commits
"""
