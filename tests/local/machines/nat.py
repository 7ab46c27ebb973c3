"""A server with addresses of its own, and houses behind NAT: namespaces, as machines of people.

    house eth0 -- lan router wan -- bridge of the server

Each router has a rate up (tbf), hides its house behind its own address, and lets in only what the
house has asked for. All houses have the same private address. The cable between a house and its
router may take time (delay.py). Nothing leads out of the namespaces, and they are gone with the
test's process. They need root.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from local.leftovers import lives
from local.machines import delay
from wire.fake_pods import ENDS_WITH_TEST, limit, space

NAME, FIRST = "server", 1  # of the server, and its number in each family
LOOK_SECONDS = 0.1
NEEDED = ("ip", "tc", "iptables", "ip6tables", "nsenter", "unshare", "setpriv")
START = """
set -e
hostname {name}
mount --bind {hosts} /etc/hosts
ip link set lo up
ip route add unreachable default metric 4096
ip -6 route add unreachable default metric 4096
"""
WAIT = """
echo ready
exec sleep infinity
"""
ADDRESSES = """
ip address add {v4.public}{number}/{v4.bits} dev wan
ip address add {v6.public}{number}/{v6.bits} dev wan nodad
"""
NO_ADDRESSES = """
ip -4 address flush dev wan
ip -6 address flush dev wan scope global
"""
SERVER = f"""
ip link add wan type bridge
{ADDRESSES}
ip link set wan up
"""
ROUTER = """
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip link add wan type veth peer name {name} netns {server}
ip address add {family.public}{number}/{family.bits} dev wan {family.nodad}
ip link set wan up
{family.tables} -t nat -A POSTROUTING -o wan -j MASQUERADE
{family.tables} -A FORWARD -i wan -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
{family.tables} -A FORWARD -i wan -j REJECT
"""
PLUG = "ip link set {name} master wan up"
CABLE = "ip link add lan type veth peer name eth0 netns {house}"
LAN = """
ip address add {family.private}1/{family.bits} dev lan {family.nodad}
ip link set lan up
"""
HOUSE = """
ip address add {family.private}2/{family.bits} dev eth0 {family.nodad}
ip link set eth0 up
ip {family.option} route add default via {family.private}1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Of addresses: beginnings of those that all know, and of those inside of each house."""

    option: str
    public: str
    private: str
    bits: int
    tables: str
    nodad: str = ""


# The addresses are of documentation (RFC 5737), private (RFC 1918) and unique local (RFC 4193).
V4 = Family(option="-4", public="203.0.113.", private="192.168.1.", bits=24, tables="iptables -w")
V6 = Family(
    option="-6",
    public="fd00:a701::",
    private="fd00:a702::",
    bits=64,
    tables="ip6tables -w",
    nodad="nodad",
)


@dataclass(frozen=True, slots=True)
class Space:
    """One machine; `pid` is of a process that keeps it."""

    pid: int

    @property
    def enter(self) -> Sequence[str]:
        """Begins a command that runs there, and ends with the test."""
        return *ENDS_WITH_TEST, *_nsenter(self.pid)

    def run(self, script: str) -> str:
        """What a shell there writes. Raises CalledProcessError."""
        words = [*_nsenter(self.pid), "sh", "-ec", script]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout

    def kill_all(self) -> int:
        """kill -9 of all that runs there, as when its power fails; how many there were."""
        killed = set[int]()
        while found := self._processes():
            for pid in found - killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found
            time.sleep(LOOK_SECONDS)
        return len(killed)

    def _processes(self) -> set[int]:
        """Those of its network namespace that live, without the one that keeps it."""
        mine = os.readlink(f"/proc/{self.pid}/ns/net")
        found = set[int]()
        for each in Path("/proc").glob("[0-9]*/ns/net"):
            with suppress(OSError):  # it has ended
                if os.readlink(each) == mine and lives(int(each.parts[2])):
                    found.add(int(each.parts[2]))
        return found - {self.pid}


@dataclass(frozen=True, slots=True, kw_only=True)
class Houses:
    """The server and its houses, in the order of their families."""

    server: Space
    houses: Sequence[Space]
    hosts: Path  # the names that all of them know

    @contextmanager
    def cut(self, *houses: int) -> Iterator[None]:
        """Nothing comes or goes meanwhile; both ends keep their addresses and connections."""
        self._links(houses, "down")
        try:
            yield
        finally:
            self._links(houses, "up")

    def move(self, number: int) -> None:
        """The server has other addresses, and its name means them; the former ones are nobody's."""
        self.server.run(NO_ADDRESSES + ADDRESSES.format(v4=V4, v6=V6, number=number))
        self.hosts.write_text(names(number))

    def _links(self, houses: Sequence[int], state: str) -> None:
        self.server.run("\n".join(f"ip link set house-{each + 1} {state}" for each in houses))


@contextmanager
def behind_nat(
    folder: Path, *families: tuple[Family, float], milliseconds: float = 0.0
) -> Iterator[Houses]:
    """A house for each family, which is all that it has, with so many Mbit/s up; 0: no limit.

    `milliseconds`: the round-trip time that the distance to each house takes.
    """
    hosts = folder / "hosts"
    hosts.write_text(names(FIRST))
    with ExitStack() as stack:

        def made(name: str, script: str) -> Space:
            whole = START.format(name=name, hosts=hosts) + script + WAIT
            return Space(stack.enter_context(space(whole)))

        server = made(NAME, SERVER.format(v4=V4, v6=V6, number=FIRST))
        houses = []
        for index, (family, megabits) in enumerate(families):
            name = f"house-{index + 1}"
            house = made(name, "")
            words = {"server": server.pid, "number": index + 11}
            router = made(f"router-{index + 1}", ROUTER.format(name=name, family=family, **words))
            if milliseconds:
                stack.enter_context(cable(router.pid, house.pid, milliseconds / 2))
            else:
                router.run(CABLE.format(house=house.pid))
            router.run(LAN.format(family=family))
            if megabits:
                limit(router.pid, "wan", megabits)
            server.run(PLUG.format(name=name))
            house.run(HOUSE.format(family=family))
            houses.append(house)
        yield Houses(server=server, houses=houses, hosts=hosts)


@contextmanager
def cable(router: int, house: int, milliseconds: float) -> Iterator[None]:
    """Between two namespaces, in which a frame takes so long."""
    ends = (str(router), "lan", str(house), "eth0")
    words = [*ENDS_WITH_TEST, sys.executable, delay.__file__, *ends, str(milliseconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", "there is no cable"
            yield
        finally:
            process.kill()


def names(number: int) -> str:
    """/etc/hosts of all machines, where the server has this number of each family."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{family.public}{number} {NAME}" for family in (V4, V6)]
    return "".join(f"{line}\n" for line in lines)


def missing() -> str:
    """What a machine lacks for houses behind NAT; empty where it has everything."""
    if os.geteuid() != 0:
        return "root"
    return ", ".join(each for each in NEEDED if shutil.which(each) is None)


def _nsenter(pid: int) -> Sequence[str]:
    return "nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--"
