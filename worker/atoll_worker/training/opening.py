"""How a process opens its side of a learner: checked on all ranks together, then made on each.

A rank that refused by itself would leave the others waiting, so what can be refused before the
first value moves is refused in `agreed`, in the same words on every rank.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import nn
from torch.optim import Optimizer

from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_worker.ranks.group import Group
from atoll_worker.settings import Job, say_alone
from atoll_worker.training import optimizers, refusals
from atoll_worker.training.alone import Alone, open_alone
from atoll_worker.training.follower import Follower, open_follower
from atoll_worker.training.parameters import travelling, travelling_of
from atoll_worker.training.replica import Replica, open_head, open_replica

Side: TypeAlias = Replica | Follower | Alone


def agreed(
    models: Sequence[nn.Module],
    read: Callable[[], Job],
    ranks: Group | None,
    *,
    steps: Sequence[Optimizer],
    told: bool,
) -> Job:
    """The job, which may be entered with these models and optimizers; collective.

    `read` reads it; `told`: somebody is told of adoptions. Raises SpecError, on all ranks, for
    arguments or an environment that cannot be right, and where ranks were started differently.
    """

    def checked() -> Job:
        if len(models) > 1 and ranks is None:
            raise SpecError(
                "model", f"is a list of {len(models)} modules", "give one: nn.ModuleList(modules)"
            )
        job = read()
        say_alone(job)
        optimizers.check(steps, models, told=told)
        for model in models:
            refusals.check_model(model, may_be_cut=ranks is not None)
        return job

    if ranks is None:
        return checked()
    job = ranks.agree(checked)
    ranks.same("slot", job.slot)
    ranks.same("run file", job.run_file.to_json())
    ranks.same(Env.LANES, job.lanes)
    return job


def open_side(
    models: Sequence[nn.Module],
    job: Job,
    instance: str,
    ranks: Group | None,
    *,
    files: Sequence[object],
    steps: Sequence[Optimizer],
) -> Side:
    """This process's side of the learner; collective.

    `instance` names this opening, as no other is named; `files` go into the exported model's
    folder. Without a job each rank counts its own steps. Raises SpecError, on all ranks, if the
    model cannot travel; then no process is left behind.
    """
    patterns = job.run_file.sync.mean_patterns
    if ranks is not None:
        places = ranks.agree(lambda: travelling_of(models, patterns))
        specs = ranks.open(models, places, job.lanes)
        optimizers.check_alike(ranks.told(optimizers.settings(steps, places)))
    if job.alone:
        if ranks is None:
            travelling(models[0], patterns)  # as in a job, so that mistakes are found here
        return open_alone(job.run_file.steps or 1)
    if ranks is None:
        return open_replica(models[0], job, instance, export_files=files, optimizers=steps)
    if not ranks.is_head:
        layout = job.run_file.layout(specs)
        return open_follower(models, places, layout, ranks, job, instance, steps)
    return open_head(
        models,
        job,
        instance,
        ranks,
        places=places,
        specs=specs,
        export_files=files,
        optimizers=steps,
    )
