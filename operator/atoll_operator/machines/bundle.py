"""What the learners of a machine start from: a folder, which is the same however it came there.

job.json   whose learners they are, where the shards are, what a learner runs
run.json   the run file
tls.crt, tls.key, ca.crt   of the learners: in the folder, or in `tls` of a state folder

`atoll credentials --files` writes such a folder, which a person brings to a machine. `atoll serve`
answers a token with the same files, but for the key, which is made on the machine. The state folder
of `atoll join` is one too: it makes the machine the same one when it is started again. Beside them
it has machine.key of one that has entered by a token, and logs, learners and processes.json as in a
run folder.

They are plain files, which any program copies one after the other: who reads them while somebody
writes new ones may find two sets, and takes neither.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.api.job.fields import HOSTS_MAX
from atoll_operator.local.run_files import RUN_FILE
from atoll_operator.machines.files import make_private, state_root, write_private
from atoll_protos.documents import parse
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials

JOB_FILE: Final = "job.json"
TLS_FOLDER: Final = "tls"
KEY_FILE: Final = "machine.key"  # of one that has entered by a token: who holds it is the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A machine of one job, or any one of a region: then it has no name and no slots yet."""

    job: str
    region: str
    endpoints: tuple[str, ...]  # by shard
    container: str  # of the learners, JSON
    learners: int = 0  # of the region, when this was written; 0: not known
    slots: tuple[str, ...] = ()
    name: str = ""
    host: int = 0  # which of the `hosts` machines of its learner
    hosts: int = 1
    hosts_min: int = 0  # with which it trains; 0: all
    rendezvous: str = ""  # on host 0 as a person has said; on others where it is
    server: str = ""  # HOST:PORT of `atoll serve`, and its certificate; empty: of a cluster
    anchor: str = ""
    wanted: str = ""  # the name that the server was asked for

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str) -> "Bundle":
        """Raises SpecError, which calls the text `name`."""
        found: Bundle = parse(Bundle, text, name)
        return found


def write(
    folder: Path, bundle: Bundle, run_file: str = "", credentials: Credentials | None = None
) -> None:
    """Write new files in place of former ones, for this user alone; what is left out stays.

    Raises OSError, and SpecError for a folder that cannot be made.
    """
    make_private(folder)
    files = {JOB_FILE: bundle.to_json().encode()}
    files |= {RUN_FILE: run_file.encode()} if run_file else {}
    if credentials is not None:
        tls = (credentials.authority, credentials.key, credentials.certificate)
        files |= dict(zip((AUTHORITY, KEY, CERTIFICATE), tls, strict=True))
    for name, data in files.items():
        write_private(folder / name, data)


def read(folder: Path) -> Bundle | None:
    """None: there is none. Raises SpecError."""
    path = folder / JOB_FILE
    try:
        return Bundle.from_json(path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, SpecError) as error:
        remedy = "let this user read it, put a copy back, or join anew with another --state"
        raise SpecError(str(path), f"cannot be read ({error})", remedy) from error


def default_folder(job: str, uid: str, machine: str) -> Path:
    return state_root() / f"{job}-{uid[:8]}-{machine}"


def state_folders() -> tuple[list[tuple[Path, Bundle]], list[SpecError]]:
    """The machines in this user's state folder, and what is wrong with others: of any job."""
    machines, faults = [], []
    for path in sorted(state_root().glob(f"*/{JOB_FILE}")):
        try:
            if (bundle := read(path.parent)) is not None:
                machines.append((path.parent, bundle))
        except SpecError as error:
            faults.append(error)
    return machines, faults


def host_of(hosts: int, host: int | None, learners: int) -> int:
    """Return the number of a host; `learners` are those of this machine. Raises SpecError."""
    if hosts > HOSTS_MAX:
        raise SpecError("--hosts", f"is {hosts}", f"use at most {HOSTS_MAX}")
    if host is None and hosts > 1:
        problem = f"is not given, and learners have {hosts} hosts"
        raise SpecError("--host", problem, f"give 0 on one machine, to {hosts - 1} on the last")
    number = host or 0
    if number >= hosts:
        remedy = f"use 0 to {hosts - 1}" if hosts > 1 else "leave it out, or give --hosts"
        raise SpecError("--host", f"is {number}, and its learner has {hosts}", remedy)
    if learners > 1 and hosts > 1:
        problem = f"is {learners}, and each learner has {hosts} hosts"
        raise SpecError("--learners", problem, "leave it out: a host is of one learner")
    return number
