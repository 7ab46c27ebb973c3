"""The rules of a shard: inputs with `now` in, effects out; no I/O, no waiting, no clock.

Imports: `atoll_syncer.model` and `atoll_protos`, never torch, grpc, numbers or storage. Each module
writes one part of the State (model/state). A module may call those that stand above it here:

    validation  whether what others say can be, field by field
    rounds/     the merge of one slice: its rounds, their offers, the clock
    companions  what an export needs beside the values that travel
    seeding     how the values begin: the model, version 0, the mark "has begun"
    answers     Calls that are not answered
    ending      one last round for each slice, Final, the export
    earlier_version  what serves where a version is damaged and no learner holds it
    recovery    committed data that this shard has lost comes back from the learners
    incarnations which instance of a slot gets one, and the proof of it
    runs        which run this is, this process's term, and the registrar's calls
    shut_out    slots that are not on the job's list, and how long they may stay
    sessions    from a Join to its Welcome or refusal; reports; what a closed session leaves
    transfers   whether a transfer may come, and where it goes once it is whole
    status      what the Status call answers
    shard       the state machine: every input, and what it makes possible; begin to read here

What reaches the outside is an effect (model/effects); what outlives the process is an entry
(model/log). A function that is named after an entry's past participle (taken, seeded, committed)
runs when that entry is durable; one in the present tense runs before.
"""
