"""Watches how the job of a machine stands, and renews the bundle that its learners start from.

How the job stands the shards say, to whom the machine shows the certificate of its learners. The
bundle comes from a source: the server that the machine has entered at, or the folder that a person
has brought. The server is asked at the start, when a certificate is due, when the shards do not
answer, and when the machine has something to say; the folder is looked into each time.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import due_at, request_for
from atoll_operator.local.local_status import JobNow, job_now
from atoll_operator.local.poller import ShardLinks
from atoll_operator.local.run_files import RUN_FILE, Say, write_whole
from atoll_operator.local.show.status_text import duration
from atoll_operator.machines import bundle as bundles
from atoll_operator.machines.bundle import KEY_FILE, TLS_FOLDER, Bundle, write_credentials
from atoll_operator.machines.joined.learners import dialled
from atoll_operator.machines.joined.server_link import ServerLink
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.network import channels
from atoll_protos.network.credentials import (
    Credentials,
    CredentialsError,
    Identity,
    Needed,
    OutOfDateError,
    Role,
)

WATCH_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 60.0  # then a line says how this machine stands


@dataclass(slots=True)
class Watcher:
    """A thread of its own, so that a silent shard holds up no learner; `say` shows one line."""

    folder: Path
    bundle: Bundle
    say: Say
    source: "Source"
    meeting: str = ""  # that host 0 of several tells the others
    clock: Callable[[], float] = time.time
    refused: dict[str, str] = field(default_factory=dict)  # by slot, why; the server is told
    now: JobNow = field(default_factory=JobNow)
    seen: pb.StatusReply | None = None  # the registrar's last answer
    heard_at: float | None = None  # in monotonic seconds
    refusal: SpecError | None = None
    _links: ShardLinks | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _failed_at: float | None = None  # since when, in monotonic seconds
    _said_after: float = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    @property
    def fails(self) -> bool:
        """Whether the last attempt had no answer."""
        return self._failed_at is not None

    @property
    def place(self) -> str:
        """Who is asked, in words."""
        return f"shard 0 at {self.bundle.endpoints[0]}"

    def look(self) -> None:
        """Renew what is due, and ask once. A refusal is kept, for good."""
        with self._looking:
            try:
                if self.source.renew(self) and self._links is not None:
                    self._links.close()
                    self._links = None
                self._ask()
            except (AwayError, OSError, CredentialsError) as error:  # the disk may be full
                self._fails(error, time.monotonic())
                return
            except SpecError as error:
                self.refusal = error
                return
            if self._failed_at is not None:
                self.say(f"{self.place} answers again")
            self._failed_at = None

    def _ask(self) -> None:
        """Raise AwayError, also for a refusal: other credentials may come."""
        self._links = self._links or ShardLinks(
            self.bundle.endpoints, str(self.folder / TLS_FOLDER)
        )
        replies = self._links.ask()
        if not any(replies):
            raise AwayError(self.place, self._silence(self._links), self.source.remedy)
        self.seen = replies[0]
        self.now, self.heard_at = job_now(replies), time.monotonic()

    def _silence(self, links: ShardLinks) -> str:
        credentials = Credentials.read(self.folder / TLS_FOLDER)
        endpoint = self.bundle.endpoints[0]
        seen = None if links.refusal else asyncio.run(channels.probe(endpoint, credentials))
        why = links.refusal or channels.judge(seen, credentials, self.clock())
        return f"refuses: {why}" if why else "does not answer"

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
            self.say(f"{alone}: {self.source.remedy}")

    def _run(self) -> None:
        while not self._over.wait(WATCH_SECONDS) and self.refusal is None:
            self.look()


@dataclass(slots=True)
class Server:
    """The server of a token, which gives the bundle."""

    link: ServerLink
    remedy = (
        "if the job is over, end this; if the server has another address, `atoll join HOST:PORT`"
    )
    _told: tuple[str, dict[str, str]] | None = None

    def renew(self, watcher: Watcher) -> bool:
        """Write what is new into the state folder; returns whether something was.

        Raises OSError, and SpecError where this machine is none of the job any more.
        """
        tells = (watcher.meeting, dict(watcher.refused))
        if not (tells != self._told or watcher.fails or watcher.bundle.host or _is_due(watcher)):
            return False
        try:
            entered = self.enter(watcher.folder, watcher.bundle, *tells)
        except AwayError:
            return False  # what counts is whether the shards answer
        self._told = tells
        had, watcher.bundle = watcher.bundle, entered
        return entered != had

    def enter(
        self,
        folder: Path,
        bundle: Bundle,
        rendezvous: str = "",
        refused: dict[str, str] | None = None,
    ) -> Bundle:
        """Ask for the bundle of a machine that has entered, and keep it. Raises as `renew`."""
        asked = pb.EnterRequest(
            name=bundle.wanted,
            learners=len(bundle.slots),
            hosts=bundle.hosts,
            host=bundle.host,
            rendezvous=rendezvous,
            refused=refused or {},
        )
        return keep_entered(folder, self.link, asked, bundle.wanted, bundle.rendezvous)


def keep_entered(
    folder: Path, link: ServerLink, asked: pb.EnterRequest, wanted: str, rendezvous: str
) -> Bundle:
    """Enter with the key in a state folder, and keep what the server answers.

    `rendezvous` is what a person has said on host 0. Raises OSError, AwayError, and SpecError for a
    refusal.
    """
    key = (folder / KEY_FILE).read_bytes()
    asked.request = request_for(key)
    reply = link.enter(asked)
    found = Bundle.from_json(reply.bundle, f"the answer of {link.place}")
    bundle = replace(
        found,
        endpoints=dialled(found.endpoints, link.place),
        rendezvous=found.rendezvous if found.host else rendezvous,
        server=link.place,
        anchor=link.anchor,
        wanted=wanted,
    )
    credentials = Credentials(reply.certificate, key, reply.authorities)
    if _kept(folder) != credentials:
        write_credentials(folder / TLS_FOLDER, credentials)
    if bundles.read(folder) != bundle:
        bundles.write(folder, bundle, reply.run_file)
    return bundle


def _kept(folder: Path) -> Credentials | None:
    try:
        return Credentials.read(folder / TLS_FOLDER)
    except CredentialsError:
        return None


def _is_due(watcher: Watcher) -> bool:
    try:
        had = Credentials.read(watcher.folder / TLS_FOLDER)
        had.check(watcher.clock())
    except (CredentialsError, OutOfDateError):
        return True
    return watcher.clock() >= due_at(had.certificate)


@dataclass(slots=True)
class Brought:
    """A folder with the bundle that a person has brought, and may write anew."""

    folder: Path
    remedy = "if the job is over or was deleted, end this"
    _fault: str = ""  # of its files at the last look
    _told: str = ""  # the last fault that was shown
    _due: bytes = b""  # the certificate that was said to expire

    def keep(self, folder: Path) -> None:
        """Copy into a state folder what learners read."""
        write_credentials(folder / TLS_FOLDER, Credentials.read(self.folder))
        write_whole(folder / RUN_FILE, (self.folder / RUN_FILE).read_text(encoding="utf-8"))

    def renew(self, watcher: Watcher) -> bool:
        """As that of `Server`."""
        had, fault = Credentials.read(watcher.folder / TLS_FOLDER), ""
        try:
            found = Credentials.read(self.folder)
            if found != had and (wrong := found.fault(watcher.clock(), _same(had.identity))):
                fault = str(wrong)
        except CredentialsError as error:
            found, fault = had, str(error)
        if fault:
            self._tell(fault, watcher.say)
            return False
        self._fault = self._told = ""
        if found != had:
            write_credentials(watcher.folder / TLS_FOLDER, found)
            watcher.say(f"the credentials in {self.folder} are new: learners take them as they run")
            return True
        self._warn(had, watcher)
        return False

    def _tell(self, fault: str, say: Say) -> None:
        """At the second look: while somebody copies them, files are of two sets."""
        if fault == self._fault != self._told:
            say(f"{fault}; the former credentials stay")
            self._told = fault
        self._fault = fault

    def _warn(self, had: Credentials, watcher: Watcher) -> None:
        if watcher.clock() >= due_at(had.certificate) and self._due != had.certificate:
            self._due = had.certificate
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(had.not_after))
            how = command(had.identity, self.folder)
            watcher.say(f"the credentials expire at {until}: bring new ones with {how}")


Source = Server | Brought  # of a machine's bundle


def command(identity: Identity, folder: Path) -> str:
    """Which command writes new credentials."""
    of = f"--region {identity.region}"
    of += f" --machine {identity.machine}" if identity.machine else ""
    return f"atoll credentials {identity.job} -n {identity.namespace} {of} --files {folder}"


def _same(had: Identity) -> Needed:
    """Of the same run, region and machine; the generation may be another one."""
    return Needed(
        namespace=had.namespace,
        job=had.job,
        uid=had.uid,
        region=had.region,
        machine=had.machine,
        roles=[Role.LEARNER],
    )
