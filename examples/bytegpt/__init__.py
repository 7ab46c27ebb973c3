"""The example model: a byte-level GPT that a job trains when its manifest names no command.

Of Atoll it imports the public package alone, as a user's script does. The operator starts it.

- model.py      ByteGPT, its size, and its initial values as a function of a seed
- data.py       files as bytes: a part for every slot, a held-out part, batches by cursor
- train.py      `atoll-worker bytegpt.train:main`, one learner
- observe.py    `atoll-worker bytegpt.observe:main`, the evaluator of a running job
- evaluate.py   `python -m bytegpt.evaluate`, the held-out loss of an export
- options.py    command-line options from a dataclass
"""
