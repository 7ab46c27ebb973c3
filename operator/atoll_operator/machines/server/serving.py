"""The machine of `atoll serve`: ports, certificates, and what its run and the machines tell.

Everything that makes it the same server after a restart is in the folder `machines` of the run
folder, for this user alone: server.json (identity and ports), the certificate of the join port,
the authority of the job, the credentials of processes here, and the register.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.condition_facts import GONE, some_of
from atoll_operator.authority.job_authority import Authority
from atoll_operator.local.atoll_run import terminated_like_interrupted
from atoll_operator.local.elsewhere import Elsewhere
from atoll_operator.local.folder import run_lock
from atoll_operator.local.folder.run_files import (
    MACHINES_FOLDER,
    OBSERVER_FOLDER,
    RUN_FILE,
    SLOTS_FILE,
    Files,
    read_tapes,
    shown,
)
from atoll_operator.local.planning.process_plan import Planned, container_elsewhere, endpoints_at
from atoll_operator.local.progress.local_status import RunSnapshot
from atoll_operator.local.progress.machines import (
    MACHINES_FILE,
    MachinesFile,
    MachineTraffic,
    ShownMachine,
    moved_by_machines,
    priced,
    read_machines,
    to_json,
)
from atoll_operator.machines.private_files import make_private
from atoll_operator.machines.server.folder import (
    DAY_HOURS,
    NAMESPACE,
    ServerFile,
    address,
    anchor_in,
    check,
    identity,
    leaf_folder,
    line_with,
    new_token,
    own_host,
    server_file,
    write_server,
)
from atoll_operator.machines.server.job_certificates import JobCertificates
from atoll_operator.machines.server.job_now import JobNow
from atoll_operator.machines.server.join_port import JoinPort, open_port
from atoll_operator.machines.server.looking import Looking
from atoll_operator.machines.server.register import (
    Book,
    OpenSlots,
    Register,
    UnreadableError,
    keeps_slots,
)
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.job.expected import Expected, ListedMachine
from atoll_protos.names import slot_name, split_slot
from atoll_protos.network.addresses import OR, joined, processes_of, split
from atoll_protos.network.identity import JobIdentity, Role
from atoll_protos.network.listening import EVERYWHERE, listening_socket

LOOPBACK: Final = "127.0.0.1"
KEEP_SECONDS: Final = 60.0  # between two looks at the certificates of this machine
TOLD_SECONDS_MAX: Final = 10.0  # that the end of the job waits for machines that still ask
RECENT_SECONDS: Final = 10.0  # a machine that has not asked for so long is not waited for
LOOK_SECONDS: Final = 0.1
SHOWN_SECONDS: Final = 1.0  # between two looks at what is shown of the machines
INVITES: Final = "On each machine with learners, within"
AWAITS: Final = "not heard that the job is complete; Ctrl-C ends the wait"


@dataclass(slots=True, kw_only=True)
class MachineServer(Elsewhere):
    """Of one job. `listen` and `advertised` are hosts; an empty one: as the caller dials it."""

    job: Job
    out: Path
    server: ServerFile
    listen: str
    advertised: str
    regions: frozenset[str]  # whose learners are processes here
    certificates: JobCertificates
    anchor: Authority
    looking: Looking
    endpoints: Sequence[str] = ()
    observer: str = ""
    now: JobNow = field(default_factory=JobNow)
    traffic: MachineTraffic = field(default_factory=MachineTraffic)
    kept_at: float = -KEEP_SECONDS
    shown: tuple[ShownMachine, ...] = ()
    shown_at: float = -SHOWN_SECONDS
    entered: Register = field(default_factory=Register)  # as it was read last
    trouble: str = ""  # with the files of `machines`, as it was said last

    @property
    def book(self) -> Book:
        return Book(self.out / MACHINES_FOLDER)

    def here(self, job: Job) -> Job:
        regions = [each for each in job.spec.regions if each.name in self.regions]
        return job.model_copy(update={"spec": job.spec.model_copy(update={"regions": regions})})

    def through(self, planned: list[Planned]) -> list[Planned]:
        return [self._secured(each) for each in planned]

    def listed(self, slots: Expected) -> Expected:
        entered = self._register().machines
        machines = tuple(ListedMachine(name=each.name, slots=each.slots) for each in entered)
        return replace(slots, machines=machines)

    @contextmanager
    def open(self, say: Callable[[str], None]) -> Iterator[None]:
        self._keep(time.monotonic(), say)
        servicer = JoinPort(
            job=self.job.name,
            book=self.book,
            certificates=self.certificates,
            now=self.now,
            endpoints=tuple(map(self._dialled, self.endpoints)),
            offered=self.offered,
            run_file=lambda: (self.out / RUN_FILE).read_text(encoding="utf-8"),
            container=lambda region: container_elsewhere(self.job, region),
            steps=lambda: self.job.spec.steps or 0,
            hosts_needed=lambda hosts: min(self.job.spec.learner.hosts_min or hosts, hosts),
            say=say,
            looking=self.looking,
        )
        self._files = Files(self.out, say)
        self.traffic = MachineTraffic(moved_by_machines(read_tapes(self.out)))
        if (before := read_machines(self.out)) is not None:
            self.now.remember(before.machines)
        self._was_complete = self.now.state == pb.JOB_COMPLETE
        if not self._was_complete:
            self._check_ports()
        port = open_port(joined(self.listen, self.server.port), self.anchor, servicer)
        try:
            yield
            self._tell_the_end()
            self._write_machines()
        finally:
            self.looking.over.set()
            port.stop(grace=1.0).wait()

    def edited(self, job: Job) -> None:
        self.job = job

    def tell(self, seen: RunSnapshot, *, final: bool, complete: bool) -> None:
        now = time.monotonic()
        try:
            self._keep(now, self._files.say)
        except (OSError, SpecError) as error:  # those that are there last for days
            self._files.say(f"certificates cannot be renewed, and are tried again: {error}")
        self._show(seen, now)
        state = pb.JOB_TRAINING if all(seen.replies) else pb.JOB_STATE_UNSPECIFIED
        if seen.status.true_condition("Suspended") is not None:
            state = pb.JOB_SUSPENDED
        state = pb.JOB_COMPLETE if complete else pb.JOB_FINAL if final else state
        self.now.tell(state, seen.step)

    def machines(self) -> Sequence[ShownMachine]:
        return self.shown

    def leaving(self, seen: RunSnapshot) -> bool:
        return None in seen.replies or any(
            not each.finished and each.state not in GONE
            for reply in seen.replies
            if reply is not None
            for each in reply.slots
            if split_slot(each.slot)[0] not in self.regions
        )

    def failed(self, why: str) -> None:
        self.now.tell(pb.JOB_FAILED, self.now.tick, why)

    def offered(self) -> OpenSlots:
        text = (self.out / SLOTS_FILE).read_text(encoding="utf-8")
        regions = [x for x in Expected.from_json(text).regions if x.name not in self.regions]
        slots = {x.name: [slot_name(x.name, i) for i in range(x.learners)] for x in regions}
        hosts = self.job.spec.learner.hosts
        return OpenSlots(slots=slots, folder=shown(self.out), hosts=hosts)

    def _show(self, seen: RunSnapshot, now: float) -> None:
        self.traffic.see(now, seen.replies)
        if now - self.shown_at >= SHOWN_SECONDS:
            self.shown_at = now
            self._write_machines()

    def _write_machines(self) -> None:
        home = self.job.spec.syncer_region
        self.shown = priced(self.now.shown(self._register(), self.traffic), home, self.prices)
        text = to_json(MachinesFile(home=home, machines=self.shown))
        self._files.write(MACHINES_FILE, text)

    def _secured(self, planned: Planned) -> Planned:
        env, command = {**planned.env}, planned.command
        region = env.get(Env.REGION, "")
        env[Env.TLS_DIR] = str(leaf_folder(self.out, planned.role, region))
        if planned.role == "shard":
            listen = joined(self.listen, split(planned.endpoint)[1])
            command = tuple(listen if word == planned.endpoint else word for word in command)
        return replace(planned, env=env, command=command)

    def _dialled(self, endpoint: str) -> str:
        """As other machines dial a shard: without a host, at that which they dial already."""
        ports = [split(each)[1] for each in processes_of(endpoint)]
        return OR.join(joined(self.advertised, port) for port in ports)

    def _check_ports(self) -> None:
        """Raise SpecError where a shard could not listen: the job would fail on all machines."""
        for each in self.server.ports:
            try:
                listening_socket(self.listen, each).close()
            except OSError as error:
                problem = f"port {each}, of a shard, cannot be bound ({error.strerror})"
                remedy = "free it, and start again: the machines of the job know this port"
                raise SpecError("--listen", problem, remedy) from error

    def _register(self) -> Register:
        """As it is, or as it was read last: a register that cannot be read ends no training."""
        try:
            self.entered, self.trouble = self.book.read(), ""
        except UnreadableError as error:
            if str(error) != self.trouble:
                self.trouble = str(error)
                self._files.say(f"{error}; the run goes on, and nobody enters meanwhile")
        return self.entered

    def _keep(self, now: float, say: Callable[[str], None]) -> None:
        if now - self.kept_at >= KEEP_SECONDS:
            self.kept_at = now
            for each in self.certificates.keep(time.time()):
                say(each)

    def invitation(self) -> str:
        token = new_token(self.out, region="", uses=None, hours=DAY_HOURS, now=time.time())
        line = line_with(token, self.out)
        return f"{INVITES} {DAY_HOURS:.0f} hours:\n\n  {line}\n"

    def tell_the_rest(self, say: Callable[[str], None]) -> None:
        """Of a job that is complete: answers until every machine has heard it, or Ctrl-C."""
        self.now.tell(pb.JOB_COMPLETE, 0)
        with run_lock.running(self.out), self.open(say):
            pass

    def _tell_the_end(self) -> None:
        begun = time.time()
        if self.now.state in (pb.JOB_COMPLETE, pb.JOB_FAILED):
            while time.time() - begun < TOLD_SECONDS_MAX:
                if not self.now.untold(begun - RECENT_SECONDS):
                    break
                time.sleep(LOOK_SECONDS)
        if self.now.state == pb.JOB_COMPLETE and (away := self._unaware()):
            names = f"{some_of(away)} {'has' if len(away) == 1 else 'have'}"
            if not self._was_complete:
                tells = f"`atoll serve {shown(self.out)}` tells them when they ask"
                self._files.say(f"{names} not heard that the job is complete; {tells}")
                return
            self._files.say(f"{names} {AWAITS}")
            with suppress(KeyboardInterrupt), terminated_like_interrupted():
                while self._unaware():
                    time.sleep(SHOWN_SECONDS)

    def _unaware(self) -> list[str]:
        """Machines of the job that have not heard that it is complete."""
        return self.now.unaware(each.name for each in self._register().machines)


def serving_in(
    out: Path,
    job: Job,
    *,
    listen: str = "",
    advertise: str = "",
    here: Sequence[str] = (),
    prices: Sequence[str] = (),
    now: float,
) -> MachineServer:
    """The server of the job in a run folder, as it was or new. Raises SpecError.

    Empty flags leave what the folder has.
    """
    folder = make_private(out / MACHINES_FOLDER)
    server = server_file(folder, job, listen, advertise, here, prices)
    host, here = server.host, server.here
    check(job, here)
    entered = Book(folder).read()
    _check_entered(entered, here)
    keeps_slots(entered, job.spec.slots, shown(out))
    advertised, advertised_port = address("--advertise", server.advertise, 0)
    shown_host = advertised or (own_host() if host in EVERYWHERE else host)
    server = replace(server, place=joined(shown_host, advertised_port or server.port))
    write_server(folder, server)
    local = LOOPBACK if host in EVERYWHERE else host
    owner = JobIdentity(namespace=NAMESPACE, job=job.name, uid=server.uid)
    region = job.spec.syncer.region or job.spec.regions[0].name
    roles = (Role.SHARD, Role.EVALUATOR, Role.OBSERVER)
    leaves = {leaf_folder(out, role, ""): identity(owner, region, role) for role in roles} | {
        leaf_folder(out, Role.LEARNER, each): identity(owner, each, Role.LEARNER) for each in here
    }
    return MachineServer(
        job=job,
        out=out,
        server=server,
        listen=host or "0.0.0.0",
        advertised=advertised,
        regions=frozenset(here),
        certificates=JobCertificates(folder, owner, leaves),
        anchor=anchor_in(folder, now),
        looking=Looking(out=out),
        endpoints=endpoints_at(server.ports, job.spec.syncer.shards, local),
        observer=str(out / OBSERVER_FOLDER),
        entered=entered,
    )


def _check_entered(register: Register, here: Sequence[str]) -> None:
    for each in register.machines:
        if each.region in here:
            problem = f"{each.region} has learners on machine {each.name}"
            remedy = f"leave it out, or first `atoll tokens DIR --revoke {each.name}`"
            raise SpecError("--here", problem, remedy)
