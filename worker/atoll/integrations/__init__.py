"""Callbacks that make a trainer of another library one learner of a job.

    from atoll.integrations import transformers    # or: lightning
    Trainer(..., callbacks=[transformers.AtollCallback()])

- `transformers`: `AtollCallback` for `transformers.Trainer` and its subclasses.
- `lightning`: `AtollCallback` for `lightning.pytorch.Trainer`.
- `batches`: tokens of a batch, the seed of a slot's data (used by both).
- `schedules`: a learning-rate schedule that a trainer holds but does not move (used by both).
- `processes`: refuses a trainer of several processes, and early stopping (used by both).
- `steps`: whether an optimizer has really stepped (used by both).

Each module imports its library, and nothing here does so before it is imported itself:
`pip install -e '.[local,transformers]'` or `'.[local,lightning]'` in a clone. They are built on
the public package alone, as a user's own callback would be (docs/integrations.md).
"""
