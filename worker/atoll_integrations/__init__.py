"""Callbacks that make a trainer of another library one learner of a job (docs/integrations.md).

    from atoll_integrations import transformers    # or: lightning
    Trainer(..., callbacks=[transformers.AtollCallback()])

They are built on the public package alone, as a user's own would be; each imports its library.

- transformers.py   `AtollCallback` for `transformers.Trainer` and its subclasses
- lightning.py      `AtollCallback` for `lightning.pytorch.Trainer`
- batches.py        tokens of a batch, the seed of a slot's data
- schedules.py      a learning-rate schedule that a trainer holds but does not move
- processes.py      refuses a trainer of several processes, and early stopping
- steps.py          whether an optimizer has really stepped
"""
