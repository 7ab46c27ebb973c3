"""What the machine of `atoll join` keeps to be the same one after a restart: its state folder.

machine.json   name and secret of the machine, its slots, the server and its certificate
tls/           certificate, key and ca.crt; the key never leaves this machine
run.json       the run file
logs/, learners/, processes.json   as in a run folder
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.machines.private_files import (
    make_private,
    state_root,
    write_credentials,
    write_private,
)
from atoll_protos.errors import SpecError
from atoll_protos.job.strict_json import parse
from atoll_protos.network.credentials import Credentials

MACHINE_FILE: Final = "machine.json"
TLS_FOLDER: Final = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One machine of one job. `wanted` is the name it asked for, `digest` of its server.

    One with credentials of a cluster has no server.
    """

    job: str
    server: str = ""
    digest: str = ""
    anchor: str = ""
    name: str
    wanted: str = ""
    secret: str = ""
    region: str
    slots: tuple[str, ...]
    endpoints: tuple[str, ...]
    container: str  # of the learners, JSON
    host: int = 0  # which of the `hosts` machines of its learner; `hosts_min` are enough to train
    hosts: int = 1
    hosts_min: int = 1
    rendezvous: str = ""  # on host 0 as a person has said; on others as the server said last


def write(folder: Path, joined: Joined) -> None:
    text = json.dumps(dataclasses.asdict(joined), indent=2) + "\n"
    write_private(make_private(folder) / MACHINE_FILE, text.encode())


def read(folder: Path) -> Joined | None:
    """None: no machine is kept there. Raises SpecError."""
    path = folder / MACHINE_FILE
    try:
        found: Joined = parse(Joined, path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, SpecError) as error:
        remedy = "let this user read it, put a copy back, or join anew with a token and --state"
        raise SpecError(str(path), f"cannot be read ({error})", remedy) from error
    return found


def keep_credentials(folder: Path, credentials: Credentials) -> None:
    write_credentials(folder / TLS_FOLDER, credentials)


def find(place: str, name: str, digest: str = "") -> tuple[Path, Joined] | None:
    """The folder of the machine that wanted this name of the server at a place, or with a digest.

    Raises SpecError where there are several.
    """
    found = [
        (folder, joined)
        for folder, joined in known()[0]
        if joined.wanted == name and (joined.digest == digest if digest else joined.server == place)
    ]
    if len(found) > 1:
        names = ", ".join(str(folder) for folder, _ in found)
        raise SpecError("--state", f"several folders are of this job: {names}", "give one of them")
    return found[0] if found else None


def default_folder(job: str, uid: str, machine: str) -> Path:
    return state_root() / f"{job}-{uid[:8]}-{machine}"


def known() -> tuple[list[tuple[Path, Joined]], list[SpecError]]:
    """The machines in this user's state folder, and what is wrong with others: of any job."""
    machines, faults = [], []
    for path in sorted(state_root().glob(f"*/{MACHINE_FILE}")):
        try:
            if (joined := read(path.parent)) is not None:
                machines.append((path.parent, joined))
        except SpecError as error:
            faults.append(error)
    return machines, faults
