"""The training process's side of a learner: the user's model and what is copied out of and into it.

This package knows torch and the link, but neither gRPC nor the protocol's rules: what to copy and
when is decided by the transport process and arrives as commands. It may import
`atoll_worker.ranks`, `atoll_worker.link`, `atoll_worker.settings`, `atoll_worker.errors` and
`atoll_protos`. Its files:

- opening.py      how a process opens its side of a learner, on all ranks together
- replica.py      a model and what it shares with the transport: who speaks with the job
- follower.py     the same on another rank of a learner of several processes
- owner.py        shared memory, staging, and the process that sends what is in the memory
- meeting.py      how the processes beside the owners of a learner find each other
- obeying.py      carries out the commands of a step boundary, in one order on every rank
- staging.py      copies between model and shared memory, on a CPU and on CUDA
- parameters.py   which tensors of a model travel, and where the parts of a slice lie in them
- alone.py        the same without a job: nothing is started or shared
- refusals.py     what a learner is not made for
- unshared.py     notices tensors that began to train after the opening
- optimizers.py   looks through wrappers of optimizers, checks and follows them
- undone.py       notices an optimizer whose steps undo what was adopted
- misuse.py       notices `step()` at the wrong places of a script
- counts.py       steps, tokens and the cursor, and the message that says them
- losses.py       the newest loss, without waiting for the device
- naming.py       names as the state dict has them, without those of wrappers
- companion.py    what an export needs beside the values that travel
- described.py    which tensors an export has, on all ranks together
- checksums.py    of tensors, whatever they are made of and wherever they lie
- model_files.py  config.json, a tokenizer: the small files of an export
- data_state.py   what the script keeps with its data cursor
- rates.py        learning-rate schedules that follow the job's tick
- last_words.py   why a learner leaves, and what the kubelet is told of it
- termination.py  SIGTERM as an orderly end
- process.py      starts and stops the transport process
"""
