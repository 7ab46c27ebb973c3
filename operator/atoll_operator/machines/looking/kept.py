"""The token of each server that this user has looked at: one file each, for this user alone.

The file has the name of HOST:PORT, and the token the digest of the server's certificate, by which
it is found where the address is another one now.
"""

from pathlib import Path
from typing import Final
from urllib.parse import quote

from atoll_operator.machines.private_files import make_private, state_root, write_private
from atoll_operator.machines.token import Token
from atoll_protos.errors import SpecError

FOLDER: Final = "tokens"


def keep(place: str, token: Token) -> None:
    """In place of the one that was kept for HOST:PORT. Raises SpecError and OSError."""
    path = _file(place)
    if _read(path) != token:
        make_private(path.parent)
        write_private(path, f"{token}\n".encode())


def kept_for(place: str, digest: str) -> Token | None:
    """That of the server with this certificate at HOST:PORT, else at any address."""
    found = map(_read, (_file(place), *sorted(_folder().glob("*"))))
    return next((each for each in found if each is not None and each.digest == digest), None)


def _read(path: Path) -> Token | None:
    try:
        return Token.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SpecError):
        return None


def _file(place: str) -> Path:
    return _folder() / quote(place, safe="")


def _folder() -> Path:
    return state_root() / FOLDER
