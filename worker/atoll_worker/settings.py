"""Who this process is in which job: arguments first, then the environment that the pod carries."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll_protos.errors import SpecError
from atoll_protos.names import Env, split_slot
from atoll_protos.run import RunFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a learner or an observer must know before it can dial."""

    run_file: RunFile
    endpoints: tuple[str, ...]  # host:port by shard
    slot: str  # empty for an observer
    uid: str  # of the pod; made up outside of one
    instance: str  # this process start
    telemetry_folder: str  # empty: none


def resolve(
    environment: Mapping[str, str],
    *,
    observer: bool = False,
    run_file: str | Path | RunFile | None = None,
    endpoints: Sequence[str] = (),
    slot: str = "",
) -> Settings:
    """Raises SpecError that names the variable that is missing or wrong and what to do."""
    run = run_file if isinstance(run_file, RunFile) else read_run_file(environment, run_file)
    listed = required(environment, Env.ENDPOINTS, "endpoints") if not endpoints else ""
    dialled = tuple(endpoints) or tuple(each.strip() for each in listed.split(",") if each.strip())
    if len(dialled) != run.shards:
        raise SpecError(
            Env.ENDPOINTS,
            f"names {len(dialled)} endpoints for {run.shards} shards",
            "give one host:port per shard, in the order of the shards",
        )
    if not observer:
        slot = slot or required(environment, Env.SLOT, "slot")
        split_slot(slot)
    uid = environment.get(Env.UID) or f"no-pod-{secrets.token_hex(8)}"
    return Settings(
        run_file=run,
        endpoints=dialled,
        slot="" if observer else slot,
        uid=uid,
        instance=environment.get(Env.INSTANCE) or f"{uid}-{secrets.token_hex(4)}",
        telemetry_folder=environment.get(Env.TELEMETRY_DIR, ""),
    )


def read_run_file(environment: Mapping[str, str], given: str | Path | None) -> RunFile:
    """The job's run file from its path."""
    path = Path(given or required(environment, Env.RUN_FILE, "run_file"))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            Env.RUN_FILE,
            f"{path} cannot be read: {error}",
            "set it to the run file that the operator or `atoll run` has written",
        ) from error
    return RunFile.from_json(text)


def required(environment: Mapping[str, str], variable: str, argument: str) -> str:
    """The variable's value, or a SpecError that says how to give it."""
    value = environment.get(variable, "")
    if not value:
        raise SpecError(
            variable,
            "is not set",
            f"start this under `atoll run` or an operator, or set it, or pass {argument}=...",
        )
    return value
