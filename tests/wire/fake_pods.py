"""Network namespaces like pods of a cluster that has IPv6 alone, with names for each other.

Each has one address out of fd00::/8, on a bridge in one more namespace, and the loopback of every
pod, which has both families. Nothing leads out of them, and nothing is left when the test's process
ends. They need root. A pod's link may have a rate, in each direction (tbf).
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkProcess
from pathlib import Path

SECONDS_MAX = 600.0
PREFIX = "fd00:a701::"
BURST, QUEUE = "3kb", "16kb"  # at once after a pause, and what may wait, of a limited link
ENDS_WITH_TEST = ("setpriv", "--pdeathsig", "KILL", "--")
HUB = """
set -e
ip link set lo up
ip link add hub type bridge
ip link set hub up
echo ready
exec sleep infinity
"""
POD = """
set -e
hostname {name}
mount --bind {hosts} /etc/hosts
ip link set lo up
ip route add unreachable default
ip -6 route add unreachable default
ip link add eth0 type veth peer name {name} netns {hub}
ip address add {address}/64 dev eth0 nodad
ip link set eth0 up
echo ready
exec sleep infinity
"""
SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One of them; `pid` is of a process that keeps it."""

    name: str
    address: str
    pid: int
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    forks: list[ForkProcess] = field(default_factory=list)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process; what all of the pod's say goes into one file."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [*self._enter, *command], stdout=output, stderr=output, env=environment
            )
        self.processes.append(process)

    def fork(self, be: Callable[..., int | None], *arguments: object) -> ForkProcess:
        """Start a fork of this process, which calls `be`; it has what was imported already."""
        fork = multiprocessing.get_context("fork").Process(
            target=_inside, args=(self, be, *arguments)
        )
        fork.start()
        self.forks.append(fork)
        return fork

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def _enter(self) -> list[str]:
        words = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--"]
        return [*ENDS_WITH_TEST, *words]


@contextmanager
def pods(folder: Path, *names: str, megabits: float = 0.0) -> Iterator[list[Pod]]:
    """Pods of these names, each with a link of `megabits` a second, or 0 for one without a limit.

    All that they run is gone at the end.
    """
    addresses = {name: f"{PREFIX}{number}" for number, name in enumerate(names, 1)}
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{address} {name}" for name, address in addresses.items()]
    hosts.write_text("".join(f"{line}\n" for line in lines))
    with ExitStack() as stack:
        hub = stack.enter_context(space(HUB))
        found = []
        for name, address in addresses.items():
            script = POD.format(name=name, hosts=hosts, hub=hub, address=address)
            pid = stack.enter_context(space(script))
            plug = ["nsenter", f"--target={hub}", "--net", "--"]
            subprocess.run([*plug, "ip", "link", "set", name, "master", "hub", "up"], check=True)
            if megabits:
                limit(hub, name, megabits)
                limit(pid, "eth0", megabits)
            found.append(Pod(name=name, address=address, pid=pid, folder=folder))
        try:
            yield found
        finally:
            for process in (process for pod in found for process in pod.processes):
                process.kill()
                process.wait(SECONDS_MAX)
            for fork in (fork for pod in found for fork in pod.forks):
                fork.kill()
                fork.join(SECONDS_MAX)


def _inside(pod: Pod, be: Callable[..., int | None], *arguments: object) -> None:
    """All of a fork: it enters the pod's namespaces, and ends with the test."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_PDEATHSIG, signal.SIGKILL)
    for kind in ("net", "uts", "mnt"):
        number = os.open(f"/proc/{pod.pid}/ns/{kind}", os.O_RDONLY)
        assert not libc.setns(number, 0), os.strerror(ctypes.get_errno())
    output = os.open(pod.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.exit(be(*arguments))


def limit(place: int, device: str, megabits: float) -> None:
    """What leaves by a device of this process's namespace waits for its turn, or is dropped."""
    enter = ["nsenter", f"--target={place}", "--net", "--", "tc", "qdisc", "add", "dev", device]
    rate = ["root", "tbf", "rate", f"{megabits}mbit", "burst", BURST, "limit", QUEUE]
    subprocess.run([*enter, *rate], check=True)


@contextmanager
def space(script: str) -> Iterator[int]:
    """Namespaces of their own, which the script sets up; the pid of a process in them."""
    words = [*ENDS_WITH_TEST, "unshare", "--net", "--uts", "--mount"]
    with subprocess.Popen([*words, "sh", "-c", script], stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        try:
            assert keeper.stdout.readline() == b"ready\n", "the namespace is not set up"
            yield keeper.pid
        finally:
            keeper.kill()
