"""Which learner of which job this process is: arguments first, then the environment of the pod."""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.names import split_slot
from atoll_protos.run import RunFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a learner or an observer must know before it can connect to the syncer."""

    run_file: RunFile
    endpoints: tuple[str, ...]  # host:port of every shard, in the order of the shards
    slot: str  # region and ordinal, such as us-east-0; empty for an observer
    uid: str  # of the pod; a random name outside of one
    instance: str  # this start of the process; no two starts share it
    telemetry_folder: str  # where learners/SLOT.jsonl is written; empty: it is not written

    @property
    def seed(self) -> int:
        """The job's seed: build the model's initial values from it, or from a constant."""
        return self.run_file.seed


def read_settings(
    *,
    run_file: str | Path | RunFile | None = None,
    endpoints: Sequence[str] = (),
    slot: str = "",
    observer: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read who this process is, without connecting to anything.

    A script calls it when it needs the job's seed or its slot before it builds the model; Learner
    and Observer call it themselves. Every argument that is not given is taken from `environment`
    (by default that of the process): ATOLL_RUN_FILE, ATOLL_ENDPOINTS, ATOLL_SLOT (not needed by an
    observer), and optionally ATOLL_UID, ATOLL_INSTANCE and ATOLL_TELEMETRY_DIR.

    Raises SpecError, which names the variable that is missing or wrong and says what to do.
    """
    variables = os.environ if environment is None else environment
    run = run_file if isinstance(run_file, RunFile) else _read_run_file(variables, run_file)
    addresses = tuple(endpoints) or _listed(_required(variables, Env.ENDPOINTS, "endpoints"))
    if len(addresses) != run.shards:
        raise SpecError(
            Env.ENDPOINTS,
            f"names {len(addresses)} endpoints for {run.shards} shards",
            "give one host:port per shard, in the order of the shards",
        )
    if observer:
        slot = ""
    else:
        slot = slot or _required(variables, Env.SLOT, "slot")
        region, _ = split_slot(slot)
        if not run.has_region(region):
            raise SpecError(
                Env.SLOT,
                f"{slot} is in region {region}, which the run file does not name",
                f"use a slot of one of spec.regions: {', '.join(r.name for r in run.regions)}",
            )
    uid = variables.get(Env.UID) or f"no-pod-{secrets.token_hex(8)}"
    return Settings(
        run_file=run,
        endpoints=addresses,
        slot=slot,
        uid=uid,
        instance=variables.get(Env.INSTANCE) or f"{uid}-{secrets.token_hex(4)}",
        telemetry_folder=variables.get(Env.TELEMETRY_DIR, ""),
    )


def _read_run_file(variables: Mapping[str, str], given: str | Path | None) -> RunFile:
    path = Path(given or _required(variables, Env.RUN_FILE, "run_file"))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            Env.RUN_FILE,
            f"{path} cannot be read: {error}",
            "set it to the run file that the operator or `atoll run` has written",
        ) from error
    return RunFile.from_json(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _required(variables: Mapping[str, str], variable: str, argument: str) -> str:
    value = variables.get(variable, "")
    if not value:
        raise SpecError(
            variable,
            "is not set",
            f"start this under `atoll run` or an operator, or set it, or pass {argument}=...",
        )
    return value
