"""Faults that a plan makes during a run, and what became of the run under each (`--chaos-plan`).

faults.py   begins and ends the faults of a plan while a run trains
means.py    how each fault of a process or of a store is made, without root
links.py    a proxy between learners and shards, for faults of the network
effects.py  chaos.jsonl: what followed each fault
plan.py     the plan that a user writes, and the faults that are drawn from it
"""
