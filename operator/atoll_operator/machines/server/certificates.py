"""The authority of a job in its folder, and the certificates that it issues.

It is the same as the operator's (`authority.job_authority`), with files in place of Secrets.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from atoll_operator.authority.job_authority import (
    DAY_SECONDS,
    LEAF_DAYS,
    Authorities,
    issue,
    make_authorities,
    outdated,
    renewal,
    sign,
    turned,
)
from atoll_operator.machines.files import write_credentials, write_private
from atoll_operator.machines.server.register import Member
from atoll_protos.documents import mapping
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import Credentials, Identity, JobIdentity, Role

MISSING: Final = "there is none"
AUTHORITY_FILE: Final = "authority.json"  # certificates and keys in one file: written at once


@dataclass(slots=True)
class JobCertificates:
    """Of one job; `folder` is for this user alone. Lives in seconds; `leaves` by folder."""

    folder: Path
    owner: JobIdentity
    leaves: Mapping[Path, Identity]
    life: float = LEAF_DAYS * DAY_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, now: float) -> list[str]:
        """Make and renew what is due at `now`; returns what was done, in words."""
        with self._lock:
            authorities, said = self._turned(now)
            done = [said] if said else []
            for folder, identity in self.leaves.items():
                why = _renewal(authorities, folder, identity, now)
                if why:
                    write_credentials(folder, issue(authorities, identity, now, self.life))
                    if why != MISSING:
                        done.append(f"a new certificate for the {identity.role}: {why}")
            return done

    def of_machine(self, machine: Member, request: bytes, now: float) -> str:
        """The certificate (PEM) that a machine has, or one for its request. Raises SpecError."""
        identity = identity_of(self.owner, machine.region, Role.LEARNER, machine.name)
        with self._lock:
            authorities, had = self._read(), machine.certificate
            if had and not outdated(authorities, had.encode(), identity, now):
                return had
            return sign(authorities, identity, request, now, self.life).decode()

    def bundle(self) -> bytes:
        with self._lock:
            return self._read().bundle

    def _read(self) -> Authorities:
        path = self.folder / AUTHORITY_FILE
        try:
            texts = mapping(path.read_text(encoding="utf-8"))
        except ValueError:
            texts = {}  # damaged: the words of one that is not there have the remedy
        files = {name: str(each).encode() for name, each in texts.items()}
        return Authorities.from_files(files, kept=str(path))

    def _turned(self, now: float) -> tuple[Authorities, str]:
        if not (self.folder / AUTHORITY_FILE).exists():
            authorities, said = make_authorities(self.owner, now), ""
        else:
            authorities, said = turned(self._read(), self.owner, now)
            if not said:
                return authorities, ""
        texts = {name: each.decode() for name, each in authorities.to_files().items()}
        write_private(self.folder / AUTHORITY_FILE, json.dumps(texts).encode())
        return authorities, said


def _renewal(authorities: Authorities, folder: Path, identity: Identity, now: float) -> str:
    try:
        return renewal(authorities, Credentials.read(folder), identity, now)
    except SpecError:
        return MISSING


def identity_of(owner: JobIdentity, region: str, role: Role, machine: str = "") -> Identity:
    return Identity(
        namespace=owner.namespace,
        job=owner.job,
        uid=owner.uid,
        region=region,
        role=role,
        machine=machine,
    )
