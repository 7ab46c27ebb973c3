"""Callbacks that make a trainer of another library one learner of a job (docs/integrations.md).

    from atoll_integrations import transformers    # or: lightning
    Trainer(..., callbacks=[transformers.AtollCallback()])

They are built on the public package alone, as a user's own would be; each imports its library.

- transformers.py   `AtollCallback` for `transformers.Trainer` and its subclasses
- lightning.py      `AtollCallback` for `lightning.pytorch.Trainer`
- trainers.py       what both share: tokens of a batch, ranks, schedules, steps of optimizers
"""
