"""One learner of many processes: what a rank holds of the model, and how values get to it.

The processes of a learner are the ranks of a process group of torch.distributed. Each holds what
its parallelism gives it of every tensor (the whole of it, some rows, nothing). The head, rank 0,
speaks with the job. This package may import `atoll_protos` alone, besides torch; when values move
is decided above, in `atoll_worker.training`. Its files:

- exchange.py  moves the values of a slice between the ranks, in both directions
- boxes.py     which box of a tensor this process holds, as DTensor and FSDP2 say it
- together.py  a step of the opening on all ranks: all go on, or all are refused
- parts.py     which rank gives which elements to which, without torch
"""
