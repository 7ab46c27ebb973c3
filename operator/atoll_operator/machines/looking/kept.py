"""The token of each server that this user has looked at: one file each, for this user alone.

Found by HOST:PORT, else by the server's certificate: its address may be another one now.
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
    if kept(place) != token:
        write_private(make_private(_folder()) / quote(place, safe=""), f"{token}\n".encode())


def kept(place: str) -> Token | None:
    return _read(_folder() / quote(place, safe=""))


def kept_for(digest: str) -> Token | None:
    """One for the server with this certificate, at any address."""
    found = map(_read, sorted(_folder().glob("*")))
    return next((each for each in found if each is not None and each.digest == digest), None)


def _read(path: Path) -> Token | None:
    try:
        return Token.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SpecError):
        return None


def _folder() -> Path:
    return state_root() / FOLDER
