"""The machine of `atoll join --credentials`: it joins a job whose shards are in a cluster.

Nobody gives it slots or certificates. It takes the slots that a person has said, and looks into the
folder that a person has brought, also while it runs. How the job stands it hears from the shards,
as operators of other clusters do, to which it shows the certificate of its learners.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.condition_facts import ENDED, GONE
from atoll_operator.authority.job_authority import due_at
from atoll_operator.local.folder.run_files import RUN_FILE, write_whole
from atoll_operator.local.progress.poller import ShardLinks
from atoll_operator.machines import brought
from atoll_operator.machines.brought import FLAG, Brought
from atoll_operator.machines.host_number import host_of
from atoll_operator.machines.joined import folder as joined_folder
from atoll_operator.machines.joined.folder import TLS_FOLDER, Joined
from atoll_operator.machines.joined.hosts import checked
from atoll_operator.machines.joined.watching import Watcher
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.names import slot_name, split_slot
from atoll_protos.network import diagnosis
from atoll_protos.network.credentials import (
    Credentials,
    CredentialsError,
    Needed,
    OutOfDateError,
)
from atoll_protos.network.identity import Identity, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtOptions:
    """What the person at this machine has said; None leaves it as it was, else one slot, the first.

    `state` None: a folder below the user's state folder.
    """

    folder: Path
    learners: int | None = None
    first_slot: int | None = None
    hosts: int | None = None  # machines of its learner, and which of them this is
    host: int | None = None
    rendezvous: str = ""
    name: str
    state: Path | None = None


def machine_of(place: BroughtOptions, now: float) -> tuple[Path, Joined, Joined | None]:
    """Its state folder, what it is, and what it was. `now` in UNIX seconds. Raises SpecError."""
    found = brought.read(place.folder)
    credentials = Credentials.read(place.folder)
    needed = Needed(job=found.job, region=found.region, roles=[Role.LEARNER])
    try:
        identity = credentials.check(now, needed)
    except OutOfDateError as error:
        remedy = f"bring new ones: {command(credentials.identity, place.folder)}"
        raise SpecError(FLAG, str(error), remedy) from error
    default = joined_folder.default_folder(found.job, identity.uid, place.name)
    folder = place.state or default
    had = joined_folder.read(folder)
    if had is not None and (had.digest or (had.job, had.region) != (found.job, found.region)):
        whose = "of `atoll serve`" if had.digest else f"of job {had.job}, region {had.region}"
        raise SpecError("--state", f"{folder} is of a machine {whose}", "give another folder")
    hosts = place.hosts or (had.hosts if had else found.hosts)
    number = had.host if had and place.host is None else place.host
    host = host_of(hosts, number, place.learners or 1)
    rendezvous = checked(place.rendezvous) or (had.rendezvous if had else "")
    if host and not rendezvous:
        problem = f"is not given, and host {host} does not know where host 0 is"
        raise SpecError("--rendezvous", problem, "give HOST:PORT, which host 0 says at its start")
    machine = Joined(
        job=found.job,
        name=place.name,
        region=found.region,
        slots=_slots(place, found, had),
        endpoints=found.endpoints,
        container=found.container,
        host=host,
        hosts=hosts,
        hosts_min=min(found.hosts_min or hosts, hosts),
        rendezvous=rendezvous,
    )
    return folder, machine, had


def keep(folder: Path, place: BroughtOptions) -> None:
    """What its learners read."""
    joined_folder.keep_credentials(folder, Credentials.read(place.folder))
    write_whole(folder / RUN_FILE, brought.read(place.folder).run_file)


def command(identity: Identity, folder: Path) -> str:
    of = f"--region {identity.region}"
    of += f" --machine {identity.machine}" if identity.machine else ""
    return f"atoll credentials {identity.job} -n {identity.namespace} {of} --files {folder}"


def check_slots(machine: Joined, had: Joined | None, seen: pb.StatusReply | None) -> None:
    """Raises SpecError where the job, as its registrar has it, lacks a slot or another has it."""
    if seen is None:
        return
    if seen.learners:
        _check_count(machine.slots, machine.region, seen.learners.get(machine.region, 0))
    own = had.slots if had is not None else ()
    for each in seen.slots:
        if each.slot not in machine.slots:
            continue
        if each.owner_uid:
            problem = f"{each.slot} belongs to a pod, so a cluster has learners of this region"
            remedy = "bring this machine into a region that no cluster serves"
            raise SpecError("--first-slot", problem, remedy)
        if machine.hosts > 1:
            continue  # its other hosts may train, and a learner of others keeps the slot
        if each.state not in GONE and each.slot not in own:
            problem = f"{each.slot} is held by a learner of another machine"
            remedy = "give the first of those that are free, or stop that learner"
            raise SpecError("--first-slot", problem, remedy)


def _slots(place: BroughtOptions, found: Brought, had: Joined | None) -> tuple[str, ...]:
    if found.slots:
        for option, value in (("--learners", place.learners), ("--first-slot", place.first_slot)):
            if value is not None:
                remedy = "leave it out, or bring others: `atoll credentials` has --learners, too"
                problem = f"is given, and the credentials are for {', '.join(found.slots)}"
                raise SpecError(option, problem, remedy)
        return found.slots
    if had is not None and place.learners is None and place.first_slot is None:
        return had.slots
    first, count = place.first_slot or 0, place.learners or 1
    slots = tuple(slot_name(found.region, first + n) for n in range(count))
    _check_count(slots, found.region, found.learners)
    return slots


def _check_count(slots: Sequence[str], region: str, learners: int) -> None:
    if split_slot(slots[-1])[1] >= learners:
        problem = f"{', '.join(slots)} wanted, and region {region} has {learners} learners"
        remedy = (
            "use fewer; or give the region more in the manifest of the syncer's cluster, and bring"
            " its credentials again"
        )
        raise SpecError("--learners", problem, remedy)


@dataclass(slots=True, kw_only=True)
class ShardWatcher(Watcher):
    """Asks the shards, and looks into the folder that was brought, `source`."""

    source: Path
    seen: pb.StatusReply | None = None  # the registrar's last answer
    _links: ShardLinks | None = None
    _fault: str = ""  # of the files in the source at the last look
    _told: str = ""  # the last fault that was shown
    _due: bytes = b""  # the certificate that was said to expire

    @property
    def place(self) -> str:
        return f"shard 0 at {self.joined.endpoints[0]}"

    @property
    def remedy(self) -> str:
        return "if the job is over or was deleted, end this"

    def ask(self) -> None:
        """Raises AwayError, also for a refusal: other credentials may be brought."""
        if self._takes() and self._links is not None:
            self._links.close()
            self._links = None
        folder = self.folder / TLS_FOLDER
        self._links = self._links or ShardLinks(self.joined.endpoints, str(folder))
        replies = self._links.ask()
        if replies[0] is None:
            raise AwayError(self.place, self._silence(self._links), self.remedy)
        self.seen = replies[0]
        self.heard(told(replies))

    def _takes(self) -> bool:
        """Whether other files were brought, with which learners dial from now on."""
        had, fault = Credentials.read(self.folder / TLS_FOLDER), ""
        try:
            found = Credentials.read(self.source)
            if found != had and (wrong := found.fault(self.clock(), _same(had.identity))):
                fault = str(wrong)
        except CredentialsError as error:
            found, fault = had, str(error)
        if fault:
            self._tell(fault)
            return False
        self._fault = self._told = ""
        if found != had:
            joined_folder.keep_credentials(self.folder, found)
            self.say(f"the credentials in {self.source} are new: learners take them as they run")
            return True
        self._warn(had)
        return False

    def _tell(self, fault: str) -> None:
        """At the second look: while somebody copies them, files are of two sets."""
        if fault == self._fault != self._told:
            self.say(f"{fault}; the former credentials stay")
            self._told = fault
        self._fault = fault

    def _warn(self, had: Credentials) -> None:
        if self.clock() >= due_at(had.certificate) and self._due != had.certificate:
            self._due = had.certificate
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(had.not_after))
            how = command(had.identity, self.source)
            self.say(f"the credentials expire at {until}: bring new ones with {how}")

    def _silence(self, links: ShardLinks) -> str:
        credentials = Credentials.read(self.folder / TLS_FOLDER)
        endpoint = self.joined.endpoints[0]
        seen = None if links.refusal else asyncio.run(diagnosis.look(endpoint, credentials))
        why = links.refusal or diagnosis.judge(seen, credentials, self.clock())
        return f"refuses: {why}" if why else "does not answer"


def told(replies: Sequence[pb.StatusReply | None]) -> pb.WatchReply:
    """How the job stands, by its shards' answers; that of the registrar is there."""
    registrar = replies[0]
    assert registrar is not None
    states = [reply.state if reply else None for reply in replies]
    state = pb.JOB_TRAINING if all(replies) else pb.JOB_STATE_UNSPECIFIED
    if all(each in ENDED for each in states):
        state = pb.JOB_FINAL
    by_intent = {pb.INTENT_SUSPEND: pb.JOB_SUSPENDED, pb.INTENT_FAIL: pb.JOB_FAILED}
    state = by_intent.get(registrar.intent, state)
    if registrar.state == pb.SHARD_COMPLETE:
        state = pb.JOB_COMPLETE
    return pb.WatchReply(
        state=state, why=registrar.why, tick=registrar.tick, length=registrar.steps
    )


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
