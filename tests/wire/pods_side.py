"""Network namespaces like pods of a cluster that has IPv6 alone, with names for each other.

Each has one address out of fd00::/8, on a bridge in one more namespace, and the loopback of every
pod, which has both families. Nothing leads out of them, and nothing is left when the test's process
ends. They need root.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SECONDS_MAX = 600.0
PREFIX = "fd00:a701::"
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
ASK = """
import sys, time, urllib.error, urllib.request
while True:
    try:
        sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=600).read().decode())
        break
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ConnectionRefusedError):
            raise
        time.sleep(0.1)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One of them; `pid` is of a process that keeps it."""

    name: str
    address: str
    pid: int
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start its one process, whose words go into a file."""
        with self.log.open("wb") as output:
            process = subprocess.Popen(
                [*self._enter, *command], stdout=output, stderr=output, env=environment
            )
        self.processes.append(process)

    def ended(self) -> int:
        """The exit code of its process."""
        return self.processes[0].wait(SECONDS_MAX)

    def asked(self, url: str) -> str:
        """What another one answers over HTTP, as soon as it listens."""
        return subprocess.run(
            [*self._enter, sys.executable, "-I", "-c", ASK, url],
            capture_output=True, text=True, check=True, timeout=SECONDS_MAX,
        ).stdout  # fmt: skip

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def _enter(self) -> list[str]:
        space = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--"]
        return [*ENDS_WITH_TEST, *space]


@contextmanager
def pods(folder: Path, *names: str) -> Iterator[list[Pod]]:
    """Pods of these names. All that they run is gone at the end."""
    addresses = {name: f"{PREFIX}{number}" for number, name in enumerate(names, 1)}
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{address} {name}" for name, address in addresses.items()]
    hosts.write_text("".join(f"{line}\n" for line in lines))
    with ExitStack() as stack:
        hub = stack.enter_context(_space(HUB))
        found = []
        for name, address in addresses.items():
            script = POD.format(name=name, hosts=hosts, hub=hub, address=address)
            pid = stack.enter_context(_space(script))
            plug = ["nsenter", f"--target={hub}", "--net", "--"]
            subprocess.run([*plug, "ip", "link", "set", name, "master", "hub", "up"], check=True)
            found.append(Pod(name=name, address=address, pid=pid, folder=folder))
        try:
            yield found
        finally:
            for process in (process for pod in found for process in pod.processes):
                process.kill()
                process.wait(SECONDS_MAX)


@contextmanager
def _space(script: str) -> Iterator[int]:
    """Namespaces of their own, which the script sets up; the pid of a process in them."""
    words = [*ENDS_WITH_TEST, "unshare", "--net", "--uts", "--mount"]
    with subprocess.Popen([*words, "sh", "-c", script], stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        try:
            assert keeper.stdout.readline() == b"ready\n", "the namespace is not set up"
            yield keeper.pid
        finally:
            keeper.kill()
