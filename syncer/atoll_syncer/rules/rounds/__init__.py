"""The merge of one slice: its rounds, their offers, and what becomes of a version.

A module may call those that stand below it in this list:

    rounds      one attempt to merge one slice, from its start to its durable version
    calls       a round begins, and learners are called
    records     the tape's line of a commit
    offers      who may hand over, whom a round waits for, which offers may come
    reading     slices whose values are still to be read from the store
    publishing  which versions a session holds, and what it lacks
    clock       the job's clock as this shard counts it
    counts      what became of all tokens
    data_states where a slot's data goes on, and the data state of its cursor
"""
