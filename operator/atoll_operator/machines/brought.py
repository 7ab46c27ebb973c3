"""The folder that a person brings to a machine, so that it joins a job of a cluster.

job.json   whose learners it may bring, where the shards are, what a learner runs, the run file
tls.crt, tls.key, ca.crt   of that region's learners, as the Secret of the region has them

They are plain files, which any program copies one after the other: who reads them while somebody
writes new ones may find two sets, and takes neither.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.machines.private_files import make_private, write_private
from atoll_protos.errors import SpecError
from atoll_protos.job.strict_json import parse
from atoll_protos.network.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials

JOB_FILE: Final = "job.json"
FLAG: Final = "--credentials"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A region of a job in a cluster, for machines outside of it."""

    job: str
    region: str
    learners: int  # of the region, when this was written
    endpoints: tuple[str, ...]  # by shard
    container: str  # of the learners, JSON
    run_file: str
    hosts: int = 1  # of a learner, where nobody says otherwise
    hosts_min: int = 0  # with which it trains; 0: all
    slots: tuple[str, ...] = ()  # of a machine with certificates of its own; else any of the region


def write(folder: Path, brought: Brought, credentials: Credentials) -> None:
    """New files in place of former ones, for this user alone. Raises SpecError."""
    make_private(folder)
    text = json.dumps(dataclasses.asdict(brought), indent=2) + "\n"
    for name, data in (
        (JOB_FILE, text.encode()),
        (AUTHORITY, credentials.authority),
        (KEY, credentials.key),
        (CERTIFICATE, credentials.certificate),
    ):
        try:
            write_private(folder / name, data)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise SpecError(str(folder / name), problem, "give a writable folder") from error


def read(folder: Path) -> Brought:
    """Raises SpecError."""
    path = folder / JOB_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror})"
        remedy = "give the folder that `atoll credentials JOB --region REGION --files DIR` writes"
        raise SpecError(FLAG, problem, remedy) from error
    found: Brought = parse(Brought, text, str(path))
    return found
