"""The rules of a shard: inputs with `now` in, effects out.

Everything here is a function of the State and of one input; nothing does I/O, waits, or reads a
clock. Imports: `atoll_syncer.model` and `atoll_protos`, never torch, grpc, numbers or storage.
Each module writes one part of the State (see model/state). A module may call those that stand
above it in this list:

    validation  whether what others say can be, field by field
    publishing  which versions a session holds, and what it lacks
    clock       the job's clock as this shard counts it
    companions  what an export needs beside the values that travel
    seeding     how the values begin: the model, version 0, the mark "has begun"
    offers      who may hand over, whom a round waits for, which offers may come
    data_states where a slot's data goes on, and the data state of its cursor
    records     the tape's line of a commit
    rounds      one attempt to merge one slice, from its start to its durable version
    answers     Calls that are not answered
    ending      one last round for each slice, Final, the export
    recovery    committed data that this shard has lost comes back from the learners
    incarnations which instance of a slot gets one, and the proof of it
    runs        which run this is, this process's term, and the registrar's calls
    shut_out    slots that are not on the job's list, and how long they may stay
    sessions    from a Join to its Welcome or refusal; reports; what a closed session leaves
    transfers   whether a transfer may come, and where it goes once it is whole
    moves       what an input makes possible
    status      what the Status call answers
    shard       the state machine: every input, and what it makes possible

Where to begin reading, by what happens to a shard:

    a process starts           shard.start, runs.begin_term; after its entry runs.term_begun
    a learner joins            sessions.opened, check, incarnations.admit; after the entry
                               sessions.taken, welcome
    the first model comes      seeding.model_arrived, ask; after the entry seeding.seeded
    a learner reports          sessions.reported, then moves.move
    the tick moves             clock.move; rounds.start_due begins the rounds that are due
    an offer comes             transfers.started, offers.objection; whole: rounds.completed
    a round closes             rounds.look, decide in model/round; the effect Merge
    a version is written       rounds.merged; after the entry rounds.committed
    a session closes           sessions.closed
    data is found lost         recovery._begin, move; a held version: recovery.arrived, committed
    the job reaches its end    ending.last_rounds, end_when_finished; after the entry say_final
    another shard calls        runs.requested

What reaches the outside is an effect (model/effects); what outlives the process is an entry
(model/log). A function that is named after an entry's past participle (taken, seeded, committed)
runs when that entry is durable; one in the present tense runs before.
"""
