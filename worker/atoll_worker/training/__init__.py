"""The training process's side of a learner: what happens at a step boundary.

This package knows torch and the link, but neither gRPC nor the protocol's rules: the transport
process decides what is copied and when, and sends commands.

- loop.py           what a Learner does at its boundaries, on entering and on leaving
- opening.py        how a process opens its side of a learner, on all ranks together
- replica.py        a model and what it shares with the transport: who speaks with the job
- follower.py       the same on another rank of a learner of several processes
- side.py           what all sides do at a boundary; a side without a job
- boundary.py       carries out the commands of a step boundary, in one order on every rank
- owner.py          shared memory, staging, and the process that sends what is in the memory
- process.py        starts and stops the transport process
- counts.py         steps, tokens and the cursor, and the message that reports them
- logged_values.py  losses and what the script logs, without waiting for the device
- gpu_health.py     ends a learner whose GPU is broken, or whose driver hangs
- gpu_faults.py     what NVML says of GPUs
- data_state.py     what the script keeps with its data cursor
"""
