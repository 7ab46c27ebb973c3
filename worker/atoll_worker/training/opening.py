"""How a process opens its side of a learner: checked on all ranks together, then made on each."""

from collections.abc import Callable, Sequence

from torch import nn
from torch.optim import Optimizer

from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_worker.job import Job, say_alone
from atoll_worker.link.messages import Start
from atoll_worker.model.parameters import travelling, travelling_of
from atoll_worker.ranks.group import Group
from atoll_worker.script import optimizers, refusals
from atoll_worker.training.follower import open_follower
from atoll_worker.training.replica import open_replica
from atoll_worker.training.side import Alone, Side


def agreed(
    models: Sequence[nn.Module],
    read: Callable[[], Job],
    ranks: Group | None,
    *,
    steps: Sequence[Optimizer],
    told: bool,
) -> Job:
    """Collective. `told`: `on_adopt` was called. SpecError, on all ranks, for what does not fit."""

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
    ranks: Group | None,
    *,
    files: Sequence[object],
    steps: Sequence[Optimizer],
) -> Side:
    """Collective. SpecError, on all ranks, if the model cannot travel; no process is left then."""
    patterns = job.run_file.sync.mean_patterns
    if ranks is None:
        places = travelling(models[0], patterns)  # alone, too, so that mistakes are found
        specs = tuple(place.spec for place in places)
    else:
        places = ranks.agree(lambda: travelling_of(models, patterns))
        specs = ranks.open(models, places, job.lanes)
        optimizers.check_alike(ranks.told(optimizers.settings(steps, places)))
    if job.alone:
        start = Start(incarnation=1, cursor=0, tick=0)
        return Alone(specs=specs, slices={}, start=start, steps=job.run_file.steps or 1)
    layout = job.run_file.layout(specs)
    if ranks is not None and not ranks.is_head:
        return open_follower(models, places, layout, job, ranks=ranks, steps=steps)
    return open_replica(models, places, layout, job, ranks=ranks, files=files, steps=steps)
