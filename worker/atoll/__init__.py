"""The public package of Atoll: what a training script imports, and nothing else.

    from atoll import Learner

    with Learner(model, optimizer) as learner:
        while not learner.finished:
            ...                                  # forward, backward, optimizer.step()
            learner.step(tokens=tokens_of_the_batch, loss=loss)

- `Learner` makes an ordinary PyTorch loop one learner of a job.
- `Observer` receives the shared parameters while a job trains, for example to evaluate them;
  each time it gives a `Snapshot`.
- `read_settings` says which job and slot this process has, before a model is built (`Settings`,
  `RunFile`).
- `LearnerError` ends a learner or observer, with the exit code that the process should use;
  `SpecError` means wrong input, and names the field and the remedy.

These names are stable. Everything else (`atoll_worker`, `atoll_protos`) may change in any release.
Importing it imports torch but not gRPC, which only the transport process needs.
"""

from atoll_protos.errors import SpecError
from atoll_protos.run import RunFile
from atoll_worker.errors import LearnerError
from atoll_worker.learner import Learner
from atoll_worker.observer import Observer, Snapshot
from atoll_worker.settings import Settings, read_settings

__all__ = [
    "Learner",
    "LearnerError",
    "Observer",
    "RunFile",
    "Settings",
    "Snapshot",
    "SpecError",
    "read_settings",
]
