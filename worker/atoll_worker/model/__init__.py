"""The user's model: names and places of its tensors, copies of them, and what an export needs.

May import `atoll_worker.ranks` and what lies below it. Its files:

- parameters.py  which tensors of a model travel, their names, and where their slices lie; digests
- staging.py     copies between model and shared memory, on a CPU and on CUDA
- tickets.py     of the copies that are put in line, without torch
"""
