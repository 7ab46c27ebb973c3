"""What `atoll tokens` does in the folder of `atoll serve`, which may run meanwhile or not."""

import time
from pathlib import Path

from atoll_operator.local.folder.run_files import MACHINES_FOLDER, SLOTS_FILE
from atoll_operator.machines.register import Book, revoke, valid
from atoll_operator.machines.server_folder import join_line, new_token, read_server
from atoll_protos.errors import SpecError
from atoll_protos.job.expected import Expected


def made(out: Path, *, region: str, uses: int | None, hours: float, now: float) -> str:
    """A new token, as the whole line that uses it. Raises SpecError."""
    read_server(out / MACHINES_FOLDER)
    names = [each.name for each in Expected.from_json((out / SLOTS_FILE).read_text()).regions]
    if region and region not in names:
        problem = f"{region} is no region of the job"
        raise SpecError("--region", problem, f"use one of {', '.join(names)}")
    return join_line(out, new_token(out, region=region, uses=uses, hours=hours, now=now))


def listed(out: Path, now: float) -> str:
    read_server(out / MACHINES_FOLDER)
    register = Book(out / MACHINES_FOLDER).read()
    rows = [("token", "region", "machines left", "until")]
    rows += [
        (each.name, each.region or "any", _number(each.uses), _time(each.until))
        for each in valid(register.tokens, now)
    ]
    rows += [("machine", "region", "slots", "since")]
    rows += [
        (each.name, each.region, ", ".join(each.slots), _time(each.since))
        for each in register.machines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def revoked(out: Path, name: str) -> str:
    """Raises SpecError where nothing has that name."""
    read_server(out / MACHINES_FOLDER)
    Book(out / MACHINES_FOLDER).change(lambda register: (revoke(register, name), None))
    return f"{name} is revoked"


def _number(uses: int | None) -> str:
    return "any number" if uses is None else str(uses)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
