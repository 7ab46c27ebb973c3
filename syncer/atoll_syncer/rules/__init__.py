"""The rules of a shard: inputs with `now` in, effects out; no I/O, no waiting, no clock.

Imports: `atoll_syncer.model` and `atoll_protos`, never torch, grpc, numbers or storage. Each module
writes one part of the State (model/state). A module may call those that stand above it here:

    validation  whether what others say can be, field by field
    publishing  values that are read back or new go to all; data states
    offers      offers: which count, which are left out, and the records of a merge
    calls       whom a shard calls for an offer, and the clock
    rounds      the merge of one slice
    seeding     how the values begin: the model, version 0, the mark "has begun"
    ending      one last round for each slice, Final, the export
    recovery    claims to versions that are not here; what is lost comes back from the learners
    runs        which run this is, this process's term, which instance of a slot gets one
    shut_out    slots that are not on the job's list, and how long they may stay
    sessions    from a Join to its Welcome or refusal; reports; transfers
    status      what the Status call answers, and why a Call has no answer
    shard       the state machine: every input, and what it makes possible; begin to read here

What reaches the outside is an effect (model/effects); what outlives the process is an entry
(model/log). A function that is named after an entry's past participle (taken, seeded, committed)
runs when that entry is durable; one in the present tense runs before.
"""
