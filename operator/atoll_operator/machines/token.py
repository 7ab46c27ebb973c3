"""The word that a person carries to another machine: NAME.SECRET.DIGEST.

The digest (sha256, hexadecimal) is that of the server's certificate, so the word proves the server
to the machine, and the secret the machine to the server: as the discovery hash of kubeadm's tokens.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final, Self

from atoll_protos.errors import SpecError

PATTERN: Final = re.compile(r"([a-z0-9]{6})\.([A-Za-z0-9_-]{22,64})\.([0-9a-f]{64})")
NAME_BYTES: Final = 3
SECRET_BYTES: Final = 24
SERVER_NAME: Final = "join.atoll.dev"  # in the certificate, whatever address is dialled
REMEDY: Final = "give the whole word that `atoll serve` or `atoll tokens DIR` has printed"


@dataclass(frozen=True, slots=True)
class Token:
    """One word; `digest` is of the server's certificate (DER)."""

    name: str
    secret: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}.{self.secret}.{self.digest}"

    def __repr__(self) -> str:
        return f"Token({self.name})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises SpecError."""
        found = PATTERN.fullmatch(text.strip())
        if found is None:
            raise SpecError("--token", "is not a whole token", REMEDY)
        return cls(*found.groups())

    @classmethod
    def new(cls, digest: str) -> Self:
        return cls(secrets.token_hex(NAME_BYTES), new_secret(), digest)


def digest_of(certificate: bytes) -> str:
    """Of a server's certificate, in DER."""
    return hashlib.sha256(certificate).hexdigest()


def new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def hash_of(secret: str) -> str:
    """What is kept of a secret. It is random, so its hash needs no salt and no slow function."""
    return hashlib.sha256(secret.encode()).hexdigest()
