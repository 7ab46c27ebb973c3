"""The user's model: names and places of its tensors, copies of them, and what an export needs.

May import `atoll_worker.ranks` and what lies below it. Its files:

- parameters.py    which tensors of a model travel, and where the parts of a slice lie in them
- naming.py        names as the state dict has them, without those of wrappers
- staging.py       copies between model and shared memory, on a CPU and on CUDA
- tickets.py       of the copies that are put in line, without torch
- tensors.py       torch's types by name, and tensors over bytes
- unshared.py      notices tensors that began to train after the opening
- undone.py        notices an optimizer whose steps undo what was adopted
- companion.py     what an export needs beside the values that travel
- described.py     which tensors an export has, on all ranks together
- tensor_sums.py   checksums of tensors, whatever they are made of and wherever they lie
- model_files.py   config.json, a tokenizer: the small files of an export
"""
