"""Which learner of which job this process is: from the environment of the process.

With none of the variables that a job sets it is *alone*: the only learner of a job without a
syncer, so the same script runs under a debugger, a profiler or a test. With some of them and not
others it was started wrongly, and the error names what is missing.
"""

import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_protos.environment import VARIABLES, Env, VariableReader, default
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.job.run_file import Region, RunFile
from atoll_protos.names import LANES_MAX, split_slot
from atoll_protos.network.addresses import endpoints_of
from atoll_protos.network.credentials import Credentials, Needed, OutOfDateError, Role
from atoll_worker.errors import LearnerError, install_excepthook

ALONE: Final = "alone"  # the name of the job and of the region of a process that is alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job, and which learner of it this process is; known before any model is built."""

    run_file: RunFile  # of Atoll, which may change; what a script may rely on are the properties
    slot: str  # region and ordinal, such as us-east-0; empty for an observer
    alone: bool = False
    endpoints: tuple[str, ...] = ()  # of every shard, in their order
    uid: str = ""  # of the pod; a random name outside of one
    instance: str = ""  # this start of the process; no two starts share it
    telemetry_folder: str = ""  # where learners/SLOT.jsonl is written; empty: it is not written
    tls_folder: str = ""  # with this process's credentials; empty: plain text
    lanes: int = 1  # connections to each shard on which values go

    @property
    def seed(self) -> int:
        """The job's seed: build the model's initial values from it, or from a constant."""
        return self.run_file.seed

    @property
    def slots(self) -> tuple[str, ...]:
        """All slots of the job, region by region, as the run file of this process names them."""
        return self.run_file.slots

    @property
    def index(self) -> int:
        """This slot's place in `slots`, from 0: its share of the data. SpecError if it has none."""
        if self.slot not in self.slots:
            problem = f"{self.slot or 'an observer'} is not a slot of the job"
            raise SpecError(Env.SLOT, problem, f"use one of {', '.join(self.slots)}")
        return self.slots.index(self.slot)

    @property
    def first(self) -> bool:
        """Whether this is the first slot, the one that saves what a job needs once.

        All ranks of its learner see True; `Learner.is_main` is true on one of them.
        """
        return self.slot == self.slots[0]

    @property
    def steps(self) -> int | None:
        """The job's length in ticks (`spec.steps`); None when it is given in tokens."""
        return self.run_file.steps

    @property
    def tokens(self) -> int | None:
        """The job's length in tokens (`spec.tokens`); None when it is given in ticks."""
        return self.run_file.tokens

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(region.name for region in self.run_file.regions)


def job() -> Job:
    """Return the job of this process, from its environment, before any model is built.

    Without a launcher it is alone, as a line on standard error says. Raises as `read_job`.
    """
    install_excepthook()
    found = read_job()
    say_alone(found)
    return found


def read_job(*, observer: bool = False, environment: Mapping[str, str] | None = None) -> Job:
    """Read who this process is, without connecting to anything; an observer needs no slot.

    Raises SpecError, which names the variable or file that is missing or wrong and says what to do,
    and LearnerError (75) for credentials that are not in date and may be renewed.
    """
    variables = os.environ if environment is None else environment
    if not observer and _without_launcher(variables):
        return _alone(variables)
    run = _read_run_file(variables)
    addresses = endpoints_of(_required(variables, Env.ENDPOINTS))
    if len(addresses) != run.shards:
        problem = f"names {len(addresses)} endpoints for {run.shards} shards"
        remedy = "give one host:port per shard, in the order of the shards"
        raise SpecError(Env.ENDPOINTS, problem, remedy)
    slot = ""
    if not observer:
        slot = _required(variables, Env.SLOT)
        region, _ = split_slot(slot)
        if not run.has_region(region):
            problem = f"{slot} is in region {region}, which the run file does not name"
            remedy = f"use a slot of one of spec.regions: {', '.join(r.name for r in run.regions)}"
            raise SpecError(Env.SLOT, problem, remedy)
    tls_folder = variables.get(Env.TLS_DIR, "")
    if tls_folder:
        _check_credentials(tls_folder, slot)
    uid = variables.get(Env.UID) or f"no-pod-{secrets.token_hex(8)}"
    return Job(
        run_file=run,
        endpoints=addresses,
        slot=slot,
        uid=uid,
        instance=variables.get(Env.INSTANCE) or f"{uid}-{secrets.token_hex(4)}",
        telemetry_folder=variables.get(Env.TELEMETRY_DIR, ""),
        tls_folder=tls_folder,
        lanes=_lanes(variables),
    )


def _lanes(variables: Mapping[str, str]) -> int:
    text = variables.get(Env.LANES) or default(Env.LANES)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LANES_MAX):
        raise SpecError(Env.LANES, f"is {text!r}", f"give a number from 1 to {LANES_MAX}")
    return int(text)


def needed_of(slot: str) -> Needed:
    if not slot:
        return Needed(roles=(Role.OBSERVER, Role.EVALUATOR))
    return Needed(region=split_slot(slot)[0], roles=(Role.LEARNER,))


def _check_credentials(folder: str, slot: str) -> None:
    """Raise CredentialsError, or LearnerError where the next start may find renewed ones."""
    try:
        Credentials.read(folder).check(time.time(), needed_of(slot))
    except OutOfDateError as error:
        raise LearnerError(ExitCode.TRY_AGAIN, str(error)) from error


_said_alone: list[bool] = []  # not empty once it is said; a fork has it too


def say_alone(job: Job) -> None:
    """One line on standard error if this process is alone: once, not from workers of a loader."""
    if job.alone and not _said_alone and multiprocessing.parent_process() is None:
        _said_alone.append(True)
        sys.stderr.write(
            f"atoll: no job has started this process, so it trains alone for {job.steps} steps "
            f"({Env.STEPS} changes that); nothing is shared or exported\n"
        )


def _without_launcher(variables: Mapping[str, str]) -> bool:
    ours = {variable.name for variable in VARIABLES if VariableReader.LEARNER in variable.roles}
    return not any(variables.get(name) for name in ours - {Env.STEPS})


def _alone(variables: Mapping[str, str]) -> Job:
    text = variables.get(Env.STEPS) or default(Env.STEPS)
    if not (text.isdecimal() and int(text)):
        raise SpecError(Env.STEPS, f"is {text!r}", "give the number of steps, 1 or more")
    run_file = RunFile(job=ALONE, regions=(Region(name=ALONE, learners=1),), steps=int(text))
    return Job(run_file=run_file, slot=run_file.slots[0], alone=True)


def _read_run_file(variables: Mapping[str, str]) -> RunFile:
    path = Path(_required(variables, Env.RUN_FILE))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "set it to the run file that the operator or `atoll run` has written"
        raise SpecError(Env.RUN_FILE, f"{path} cannot be read: {error}", remedy) from error
    return RunFile.from_json(text)


def _required(variables: Mapping[str, str], variable: str) -> str:
    value = variables.get(variable, "")
    if not value:
        raise SpecError(
            variable,
            "is not set",
            "start this under `atoll run` or an operator, or set it, or unset all ATOLL_ variables "
            "to train alone",
        )
    return value


# Two open Learners of one process would take their slot from each other all the time. One after the
# other is right: each opening is an *instance* of its own, so the tokens of both count (rule 13).
_open: dict[int, object] = {}  # the open Learner, by process: a fork begins with its own
_openings: dict[int, int] = {}  # of a process


def claim_process(holder: object, instance: str) -> str:
    """Note `holder`, and return a new instance's name. SpecError if another Learner is open."""
    process = os.getpid()
    if process in _open:
        raise SpecError(
            "Learner",
            "another one is open in this process",
            "leave its `with`, or close() it, first; models that train together (a GAN, actor and "
            "critic) go into one nn.ModuleDict with one Learner",
        )
    _open[process] = holder
    _openings[process] = number = _openings.get(process, 0) + 1
    return instance if number == 1 else f"{instance}.{number}"


def holds_process(holder: object) -> bool:
    return _open.get(os.getpid()) is holder


def release_process(holder: object) -> None:
    if holds_process(holder):
        del _open[os.getpid()]
