"""How the hosts of a learner meet, and whether one of them is lost: a rendezvous of torchrun.

torchrun calls `next_rendezvous` before it starts ranks, and `num_nodes_waiting` while they run.

Host 0 serves a store for the launchers, and for each round another one for the ranks, on its own
address alone: a store has no secret. A launcher writes that it lives (`beat/`) and that it waits
for a round (`wish/`). Host 0 publishes a round when all hosts wait, or as many as the learner needs
and `last_call_timeout` is over. Whoever leaves a round, or comes after it has begun, marks it as
over (`over/`): all hosts of it stop their ranks and meet again.

torchrun's own rendezvous do not do: `static` cannot meet twice; `c10d` unpickles what is in its
store, compares clocks of hosts, and gives rank 0 to the lowest address. Rank 0, the head, has to be
on host 0, whose pod is the one by which the learner is known.

The ranks of this host: their signals, and what they print.

Ranks write into pipes, and a thread passes on whole lines, with the rank before each. (torchrun's
own tee needs a file for each rank, which grows as long as it trains.) A learner of one process
keeps the launcher's output. torch writes `[rank1]: ` before some lines itself; none has it twice.
"""

import contextlib
import itertools
import json
import os
import selectors
import shutil
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any, Final

import structlog
from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig

from atoll_protos.network.listening import listening_socket

LINE_BYTES_MAX: Final = 1 << 16  # of one that does not end
KEPT_LINES: Final = 60  # of each rank, to be printed again
KILLED_SECONDS_MAX: Final = 10.0  # until a process that was killed has left its devices
CHILD_LOOK_SECONDS: Final = 0.05

Write = Callable[[int, bytes], None]  # to descriptor 1 or 2 of this process


class LocalRanks:
    """The ranks of this host, and the signal by which the launcher is to end, if any."""

    def __init__(self) -> None:
        self.signal: Signals | None = None

    def end(self, number: int, _: object) -> None:
        """Handle a signal. The first one counts."""
        self.signal = self.signal or Signals(number)

    def stop(self, number: Signals, seconds: float) -> None:
        """Send the signal to the ranks; kill those that have not ended after `seconds`.

        torchrun sends it to all processes of a rank, and a rank fails whose data loaders' workers
        end before it; nor does it wait for one that it kills, whose memory the next ones need.
        """
        for send, wait in ((number, seconds), (Signals.SIGKILL, KILLED_SECONDS_MAX)):
            for pid in running():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, send)
            deadline = time.monotonic() + wait
            while running() and time.monotonic() < deadline:
                time.sleep(CHILD_LOOK_SECONDS)


def running() -> list[int]:
    """Return the ranks that have not ended, as /proc has them: children with sessions of their own.

    The first process of a container is also the parent of what its ranks leave behind.
    """
    parent, pids = str(os.getpid()), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, ppid, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if (ppid, session) == (parent, path.parent.name) and state not in "ZX":
                pids.append(int(session))
    return pids


def ending_with_parent() -> list[str]:
    """Return the start of a command whose process is killed when the launcher dies; else empty."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def write_through(descriptor: int, data: bytes) -> None:
    """Write to standard output or standard error at once; nothing if nobody reads it any more."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]


@dataclass(slots=True)
class _Pipe:
    """What one rank prints to descriptor 1 or 2; `rest` is a line that has not ended."""

    rank: int
    descriptor: int
    write_end: int
    rest: bytes = b""

    def lines(self, data: bytes) -> list[bytes]:
        """Return the whole lines that end with this data; all of them without data."""
        *whole, self.rest = [*(self.rest + data).splitlines(keepends=True), b""]
        if data and whole and not (whole[-1].endswith(b"\n") or len(whole[-1]) >= LINE_BYTES_MAX):
            self.rest = whole.pop()
        return whole


class Lines(LogsSpecs):
    """The pipes of the ranks of one start; torchrun calls `reify` before it starts them."""

    def __init__(self, write: Write = write_through) -> None:
        super().__init__()
        self.write = write
        self.selector = selectors.DefaultSelector()
        self.thread: threading.Thread | None = None
        self.over = threading.Event()
        self.last: dict[int, deque[bytes]] = {}
        self.newest: int | None = None  # the rank that wrote the last line

    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """Where the ranks of the next start write."""
        self.finish()
        self.last, self.newest = {}, None
        alone = all(env["WORLD_SIZE"] == "1" for env in envs.values())
        out, errors = (
            {i: "" if alone else self.open(int(env["RANK"]), number) for i, env in envs.items()}
            for number in (1, 2)
        )
        if not alone:
            self.start()
        return LogsDest(out, errors, error_files=dict.fromkeys(envs, ""))

    @property
    def root_log_dir(self) -> str:
        return ""

    def open(self, rank: int, descriptor: int) -> str:
        """Return the path of a new pipe for this rank's standard output (1) or errors (2)."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        self.last.setdefault(rank, deque(maxlen=KEPT_LINES))
        self.selector.register(read, selectors.EVENT_READ, _Pipe(rank, descriptor, write))
        return f"/proc/self/fd/{write}"

    def start(self) -> None:
        """Begin to pass lines on."""
        self.over.clear()
        self.thread = threading.Thread(target=self._run, name="atoll-lines", daemon=True)
        self.thread.start()

    def finish(self) -> None:
        """Pass on what the ranks have written that have ended; what others still write is lost."""
        if self.thread is not None:
            self.over.set()
            self.thread.join()
            self.thread = None
        for key in [*self.selector.get_map().values()]:
            self._write(key.data, key.data.lines(b""))
            self.selector.unregister(key.fileobj)
            os.close(key.fd)
            os.close(key.data.write_end)

    def repeat(self, rank: int, head: str) -> None:
        """Write the last lines of a rank again at the end, unless they are there."""
        lines = self.last.get(rank)
        if lines and self.newest != rank:
            self.write(2, b"".join([f"{head}\n".encode(), *lines]))

    def _run(self) -> None:
        while True:
            over = self.over.is_set()  # before the last look
            ready = self.selector.select(0 if over else CHILD_LOOK_SECONDS)
            for key, _ in ready:
                data = os.read(key.fd, LINE_BYTES_MAX - len(key.data.rest))
                self._write(key.data, key.data.lines(data))
            if over and not ready:
                return

    def _write(self, pipe: _Pipe, lines: list[bytes]) -> None:
        name = f"[rank{pipe.rank}]: ".encode()
        for line in lines:
            named = line if line.startswith(name) else name + line
            whole = named if named.endswith((b"\n", b"\r")) else named + b"\n"
            self.last[pipe.rank].append(whole)
            self.newest = pipe.rank
            self.write(pipe.descriptor, whole)


BACKEND: Final = "atoll"  # the name of these rendezvous in torchrun's registry
PARAMETER: Final = "meeting"  # the configuration of that name is the rendezvous itself
LOOPBACK: Final = "127.0.0.1"
STOP_SECONDS: Final = 30.0  # for ranks to leave the job after a signal; as torchrun's
AGAIN_STOP_SECONDS: Final = 5.0  # the same where the learner starts again anyhow
LAST_HOST_SECONDS: Final = 30.0  # for the others to finish as well
LOOK_SECONDS: Final = 0.5  # from one look into the store to the next
CONNECT_SECONDS_MAX: Final = 5.0
READ_SECONDS: Final = 30.0  # of the store of a host that has lost power

log = structlog.get_logger()


class RoundOverError(Exception):
    """The ranks of this host are stopped: a host has left the round, or wants to join."""


class AgentStore(PrefixStore):
    """The store of torchrun's agents in one round; `wait` is their last barrier."""

    def __init__(self, prefix: str, store: TCPStore, ranks: LocalRanks) -> None:
        super().__init__(prefix, store)
        self.ranks = ranks

    def wait(self, keys: list[str], *_: Any) -> None:
        """Wait for the other hosts, no longer than LAST_HOST_SECONDS or until a signal."""
        deadline = now() + LAST_HOST_SECONDS
        while not (self.check(keys) or self.ranks.signal or now() > deadline):
            time.sleep(LOOK_SECONDS / 10)


class OneHost(RendezvousHandler):
    """The rendezvous of a learner's only host: each start has a store of its own, on loopback."""

    use_agent_store = True

    def __init__(self, run_id: str, ranks: LocalRanks) -> None:
        self.run_id = run_id
        self.ranks = ranks
        self.of_ranks: TCPStore | None = None  # kept open as long as its round

    def next_rendezvous(self) -> RendezvousInfo:
        self.of_ranks = open_store(LOOPBACK, 0)
        return self.info(self.of_ranks, "agents", 0, 1, (LOOPBACK, self.of_ranks.port))

    def num_nodes_waiting(self) -> int:
        if self.ranks.signal:
            self.ranks.stop(self.ranks.signal, STOP_SECONDS)
        return 0

    def info(
        self, store: TCPStore, prefix: str, rank: int, hosts: int, address: tuple[str, int]
    ) -> RendezvousInfo:
        agents = AgentStore(prefix, store, self.ranks)
        return RendezvousInfo(agents, rank, hosts, RendezvousStoreInfo(*address))

    def began_here(self, *, wait: bool) -> bool:
        """Whether the learner failed because of a rank of this host, and not of another one.

        A rank may fail with an error of torch since one of another host has ended. Who fails first
        marks the round; a host that is gone marks nothing, which `wait` (for `patience`) shows.
        """
        del wait
        return False

    def close(self) -> None:
        """Let no round begin any more: the learner has ended."""

    def leave(self) -> None:
        """Let the others know that this host is gone."""

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self.run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing: torchrun calls it after failures, too."""

    def shutdown(self) -> bool:
        return True


@dataclass(slots=True)
class HostsRound:
    """`hosts` are the wishes that it fulfils, by rank; `address` is that of the ranks' store."""

    number: int = 0
    hosts: list[str] = field(default_factory=list)
    address: tuple[str, int] = ("", 0)


class Meeting(OneHost):
    """The rendezvous of one host among several.

    `address` is that of the launchers' store, `conf` what torchrun calls --rdzv-conf. A wish is
    `HOST/ID COUNT`: its launcher, whose ID no other one has, and how often that one has met.
    """

    def __init__(
        self, config: LaunchConfig, host: int, address: tuple[str, int], ranks: LocalRanks
    ) -> None:
        super().__init__(config.run_id, ranks)
        self.host, self.address = host, address
        self.hosts_min, self.hosts_max = config.min_nodes, config.max_nodes
        self.ranks_address = config.local_addr or address[0]
        conf: Mapping[str, Any] = config.rdzv_configs
        self.join_seconds = float(conf.get("join_timeout", 600))
        self.last_call = float(conf.get("last_call_timeout", 10))
        self.interval = float(conf.get("keep_alive_interval", 3))
        self.patience = self.interval * int(conf.get("keep_alive_max_attempt", 3))
        self.me = f"{host}/{uuid.uuid4().hex}"
        self.wishes = 0
        self.round = HostsRound()
        self.fulfilled = set[str]()
        self.beats: dict[str, tuple[str, float]] = {}  # the last one, and when it was new
        self.enough_since: float | None = None
        self.next_look = 0.0
        self.gone = threading.Event()
        self._store: TCPStore | None = None

    @property
    def store(self) -> TCPStore:
        """That of the launchers; waits until host 0 can be reached."""
        if self._store is None:
            self._store = self._reach()
            self._store.set(f"beat/{self.me}", "0")
            threading.Thread(target=self._beat, name="atoll-beat", daemon=True).start()
        return self._store

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round with this host. Raises RendezvousError and DistError."""
        wish = self._wish()
        while True:
            if self.host == 0:
                self._begin()
            latest = int(self.read("round") or 0)
            if latest > self.round.number:
                self.round = HostsRound(**json.loads(self.read(f"round/{latest}")))
                if wish in self.round.hosts:
                    break
                wish = self._wish()
            if latest:
                self.store.set(f"over/{latest}", "1")
            if self.read("closed"):
                raise RendezvousClosedError("the learner has ended on another host")
            self.pause()
        rank, (host, port) = self.round.hosts.index(wish), self.round.address
        prefix = f"agents/{latest}"
        return self.info(self.store, prefix, rank, len(self.round.hosts), (host, port))

    def num_nodes_waiting(self) -> int:
        """Stop the ranks and raise RoundOverError if the hosts of the round have to meet again."""
        if self.ranks.signal or now() < self.next_look:
            return super().num_nodes_waiting()
        self.next_look = now() + LOOK_SECONDS
        try:
            if self.host == 0 and self.hosts_min < len(self.round.hosts):
                self._leave_behind()
            over = self.store.check([f"over/{self.round.number}"])
        except DistError:  # host 0 is gone, and the ranks wait for it in vain
            self.ranks.stop(SIGTERM, AGAIN_STOP_SECONDS)
            raise
        if over:
            self.ranks.stop(SIGTERM, AGAIN_STOP_SECONDS)
            raise RoundOverError
        return 0

    def began_here(self, *, wait: bool) -> bool:
        key = f"failed/{self.round.number}"
        try:
            if self.store.compare_set(key, "", self.me).decode() != self.me:
                return False
            return not (wait and self._misses_another())
        except DistError:  # host 0 is gone
            return False

    def close(self) -> None:
        with contextlib.suppress(DistError):
            self.store.set("closed", "1")

    def leave(self) -> None:
        self.gone.set()
        with contextlib.suppress(DistError):
            if self._store is not None:
                self._store.set(f"beat/{self.me}", "")

    def read(self, key: str) -> str:
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def pause(self) -> None:
        """Raise SignalException where the launcher is to end."""
        time.sleep(LOOK_SECONDS)
        if self.ranks.signal:
            raise SignalException("ended while it waits for others", sigval=self.ranks.signal)

    def beat(self, wish: str) -> str:
        """Return the last sign of life of its launcher; empty if it has left."""
        return self.read(f"beat/{wish.split(maxsplit=1)[0]}")

    def alive(self, wish: str, seconds: float) -> bool:
        """Whether its launcher has given a sign of life in that time, by the clock of this host."""
        beat = self.beat(wish)
        last, since = self.beats.get(wish, (None, 0.0))
        if beat != last:
            since = now()
            self.beats[wish] = beat, since
        return beat != "" and now() - since < seconds

    def _wish(self) -> str:
        self.wishes += 1
        wish = f"{self.me} {self.wishes}"
        self.store.set(f"wish/{self.host}", wish)
        return wish

    def _begin(self) -> None:
        """Publish the next round if enough hosts wait for it; on host 0."""
        wishes = {self.read(f"wish/{host}"): host for host in range(self.hosts_max)}
        new = wishes.keys() - self.fulfilled - {""}
        there = sorted((w for w in new if self.alive(w, self.patience)), key=wishes.__getitem__)
        if len(there) < self.hosts_min:
            self.enough_since = None
            return
        self.enough_since = now() if self.enough_since is None else self.enough_since
        if len(there) < self.hosts_max and now() - self.enough_since < self.last_call:
            return
        self.enough_since = None
        self.fulfilled.update(there)
        self.of_ranks = open_store(self.ranks_address, 0)
        number, address = self.round.number + 1, (self.ranks_address, self.of_ranks.port)
        body = json.dumps({"number": number, "hosts": there, "address": address})
        self.store.set(f"round/{number}", body)
        self.store.set("round", str(number))

    def _misses_another(self) -> bool:
        """Whether nothing comes from another host of the round for `patience` seconds."""
        others = [wish for wish in self.round.hosts if not wish.startswith(self.me)]
        before = {wish: self.beat(wish) for wish in others}
        deadline = now() + self.patience
        while now() < deadline and all(map(self.beat, others)) and not self.ranks.signal:
            time.sleep(LOOK_SECONDS)
        return any(self.beat(wish) in ("", before[wish]) for wish in others)

    def _leave_behind(self) -> None:
        """Mark the round as over where hosts are silent and the others are enough; on host 0.

        Not where one has finished: it is silent, too.
        """
        silent = [wish for wish in self.round.hosts if not self.alive(wish, 2 * self.patience)]
        rest = len(self.round.hosts) - len(silent)
        if not silent or rest < self.hosts_min or self.read("closed"):
            return
        names = ", ".join(wish.split("/")[0] for wish in silent)
        log.warning(
            f"nothing comes from host {names} of this learner: the others continue without it"
        )
        self.store.set(f"over/{self.round.number}", "1")

    def _beat(self) -> None:
        with contextlib.suppress(DistError):  # the main thread has it as well
            for count in itertools.count(1):
                if self.gone.wait(self.interval):
                    return
                self.store.set(f"beat/{self.me}", str(count))

    def _reach(self) -> TCPStore:
        """Connect to the store of host 0; torch would wait no longer than `read_timeout`."""
        if self.host == 0:
            try:
                return open_store(*self.address)
            except OSError as error:
                raise RendezvousConnectionError(f"{self.address}: {error}") from error
        deadline, warned = now() + self.join_seconds, False
        name = ":".join(map(str, self.address))
        while True:
            try:
                socket.create_connection(self.address, CONNECT_SECONDS_MAX).close()
                return TCPStore(*self.address, timeout=timedelta(seconds=READ_SECONDS))
            except (OSError, DistError) as error:
                if now() > deadline:
                    raise RendezvousConnectionError(f"{name}: {error}") from error
            if not warned:
                warned = True
                log.warning(f"waiting for host 0 of this learner at {name}", host=self.host)
            self.pause()


def open_store(host: str, port: int) -> TCPStore:
    """Serve a store to those who reach this host by that name; port 0: one that is free.

    Raises OSError.
    """
    listener = store_listener(host, port)
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=READ_SECONDS),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def store_listener(host: str, port: int) -> socket.socket:
    """On the address of that name alone. Raises OSError.

    On all addresses where the name is another machine's (NAT), or is of the loopback interface on
    this machine alone, as that of many a plain machine.
    """
    with contextlib.suppress(OSError):
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        if host in (address, "localhost") or not ip_address(address).is_loopback:
            return listening_socket(address, port)
    return listening_socket("", port)


def now() -> float:
    return time.monotonic()


rendezvous_handler_registry.register(BACKEND, lambda parameters: parameters.config[PARAMETER])
