"""The public package of Atoll: what a training script imports, and nothing else.

    import atoll

    job = atoll.job()                            # seed and slot, before the model is built
    with atoll.Learner(model) as learner:
        while not learner.finished:
            ...                                  # forward, backward, optimizer.step()
            learner.step(tokens=tokens_of_the_batch, loss=loss)

- `job` says which learner of which job this process is (`Job`, with its `RunFile`). Without a
  launcher the process is alone, so the same script runs under a debugger.
- `Learner` makes an ordinary PyTorch loop one learner of a job; each call of its `step` gives a
  `Step`.
- `Observer` receives the shared parameters while a job trains, for example to evaluate them;
  each time it gives a `Snapshot`.
- `LearnerError` ends a learner or observer, with the exit code that the process should use;
  `SpecError` means wrong input, and names the field and the remedy.

`atoll.integrations` has callbacks for trainers of other libraries; each is imported by itself.

These names are stable. Everything else (`atoll_worker`, `atoll_protos`) may change in any release.
Importing it imports torch but not gRPC, which only the transport process needs.
"""

from atoll_protos.errors import SpecError
from atoll_protos.run import RunFile
from atoll_worker.errors import LearnerError
from atoll_worker.learner import Learner, Step
from atoll_worker.observer import Observer, Snapshot
from atoll_worker.settings import Job, job

__all__ = [
    "Job",
    "Learner",
    "LearnerError",
    "Observer",
    "RunFile",
    "Snapshot",
    "SpecError",
    "Step",
    "job",
]
