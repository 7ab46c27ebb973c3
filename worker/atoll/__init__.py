"""The public package of Atoll: what a training script imports, and nothing else.

    import atoll

    job = atoll.job()                            # seed and slot, before the model is built
    with atoll.Learner(model, optimizer) as learner:
        learner.follow(optimizer, tokens=batch_tokens, loss=lambda: loss)
        while not learner.finished:
            ...                                  # a step with batch (job.index, learner.cursor)

An `Observer` receives the shared parameters while a job trains. `LearnerError` ends either, with
the exit code for the process; `SpecError` means wrong input, and names the field and the remedy.

These names are stable; `atoll_worker` and `atoll_protos` may change in any release. Importing this
imports torch but not gRPC. The package `atoll_integrations` has callbacks for other trainers.
"""

from atoll_protos.errors import SpecError
from atoll_worker.errors import LearnerError
from atoll_worker.job import Job, job
from atoll_worker.learner import Learner, Step
from atoll_worker.observer import Observer

__all__ = ["Job", "Learner", "LearnerError", "Observer", "SpecError", "Step", "job"]
