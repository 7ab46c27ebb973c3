"""Asks the server every few seconds how the job stands, and renews this machine's certificate."""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import due_at, make_request
from atoll_operator.local.show.status_text import duration
from atoll_operator.machines.joined import folder as joined_folder
from atoll_operator.machines.joined.folder import TLS_FOLDER, Joined
from atoll_operator.machines.server_link import ServerLink
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.network.credentials import Credentials, CredentialsError, OutOfDateError

WATCH_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 60.0  # then a line says how this machine stands
TRIPS: Final = 5  # of which the shortest is told: a busy machine makes the others longer


@dataclass(slots=True)
class Watcher:
    """A thread of its own, so that a silent server holds up no learner; `say` shows one line."""

    folder: Path
    joined: Joined
    say: Callable[[str], None]
    meeting: str = ""  # that host 0 of several tells the others
    clock: Callable[[], float] = time.time
    reply: pb.WatchReply = field(default_factory=pb.WatchReply)
    heard_at: float | None = None  # in monotonic seconds
    trips: deque[float] = field(default_factory=lambda: deque(maxlen=TRIPS))  # seconds
    refusal: SpecError | None = None
    link: ServerLink = field(init=False)
    _over: threading.Event = field(default_factory=threading.Event)
    _failed_at: float | None = None  # since when, in monotonic seconds
    _said_after: float = 0.0

    def __post_init__(self) -> None:
        self.link = ServerLink(self.joined.server, self.joined.anchor)

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    @property
    def fails(self) -> bool:
        """Whether the last attempt had no answer."""
        return self._failed_at is not None

    def look(self) -> None:
        """Ask once, and renew what is due. A refusal is kept, for good."""
        try:
            self.ask()
        except (AwayError, OSError) as error:  # the disk may be full
            self._fails(error, time.monotonic())
            return
        except SpecError as error:
            self.refusal = error
            return
        if self._failed_at is not None:
            self.say(f"{self.place} answers again")
        self._failed_at = None

    @property
    def place(self) -> str:
        """Who is asked, in words."""
        return self.joined.server

    @property
    def remedy(self) -> str:
        """What to do when nobody has answered for long."""
        return (
            "if the job is complete, end this, or `atoll serve DIR` on the server's machine tells"
            " it; if the server has another address, `atoll join HOST:PORT`"
        )

    def ask(self) -> None:
        """Raises AwayError, OSError, and SpecError for a refusal."""
        name, secret = self.joined.name, self.joined.secret
        reply, seconds = self.link.watch(name, secret, min(self.trips, default=0.0), self.meeting)
        self.heard(reply)
        self.trips.append(seconds)
        self._renew()

    def heard(self, reply: pb.WatchReply) -> None:
        self.reply, self.heard_at = reply, time.monotonic()

    def _fails(self, error: Exception, now: float) -> None:
        """Said at once, and how this machine stands after 1, 2, 4, ... minutes."""
        if self._failed_at is None:
            self._failed_at, self._said_after = now, SILENT_SECONDS
            why = f"{error.field} {error.problem}" if isinstance(error, AwayError) else error
            self.say(f"{why}; learners train on, and it is asked again and again")
        elif now - self._failed_at >= self._said_after and isinstance(error, AwayError):
            silent = now - self._failed_at
            self._said_after = 2 * silent
            alone = f"{self.place} has not answered for {duration(silent)}; learners go on alone"
            self.say(f"{alone}: {self.remedy}")

    def _run(self) -> None:
        while not self._over.wait(WATCH_SECONDS) and self.refusal is None:
            self.look()

    def _renew(self) -> None:
        if not self._is_due():
            return
        key, request = make_request()
        new = self.link.renew(self.joined.name, self.joined.secret, request)
        credentials = Credentials(new.certificate, key, new.authorities)
        joined_folder.keep_credentials(self.folder, credentials)

    def _is_due(self) -> bool:
        try:
            had = Credentials.read(self.folder / TLS_FOLDER)
            had.check(self.clock())
        except (CredentialsError, OutOfDateError):
            return True
        same = hashlib.sha256(had.authority).hexdigest() == self.reply.authorities_digest
        return not same or self.clock() >= due_at(had.certificate)
