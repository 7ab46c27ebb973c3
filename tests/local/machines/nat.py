"""A server with addresses of its own, and houses behind NAT: namespaces, as machines of people.

    house eth0 -- lan router wan -- bridge of the server

Each router has a rate up (tbf), hides its house behind its own address, and lets in only what the
house has asked for. All houses have the same private address. Delays are not made: that needs
netem, which not every kernel has. Nothing leads out of the namespaces, and they are gone with the
test's process. They need root.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wire.pods_side import ENDS_WITH_TEST, limit, space

NAME = "server"
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
SERVER = """
ip link add wan type bridge
ip address add {v4.public}1/24 dev wan
ip address add {v6.public}1/64 dev wan nodad
ip link set wan up
"""
ROUTER = """
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip link add wan type veth peer name {name} netns {server}
ip link add lan type veth peer name eth0 netns {house}
ip address add {family.public}{number}/{family.bits} dev wan {family.nodad}
ip address add {family.private}1/{family.bits} dev lan {family.nodad}
ip link set wan up
ip link set lan up
{family.tables} -t nat -A POSTROUTING -o wan -j MASQUERADE
{family.tables} -A FORWARD -i wan -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
{family.tables} -A FORWARD -i wan -j REJECT
"""
PLUG = "ip link set {name} master wan up"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Houses:
    """The server and its houses, in the order of their families."""

    server: Space
    houses: Sequence[Space]

    @contextmanager
    def cut(self, house: int) -> Iterator[None]:
        """Nothing comes or goes meanwhile; both ends keep their addresses and connections."""
        self.server.run(f"ip link set house-{house + 1} down")
        try:
            yield
        finally:
            self.server.run(f"ip link set house-{house + 1} up")


@contextmanager
def behind_nat(folder: Path, *families: tuple[Family, float]) -> Iterator[Houses]:
    """A house for each family, which is all that it has, with so many Mbit/s up; 0: no limit."""
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{x.public}1 {NAME}" for x in (V4, V6))]
    hosts.write_text("".join(f"{line}\n" for line in lines))
    with ExitStack() as stack:

        def made(name: str, script: str) -> Space:
            whole = START.format(name=name, hosts=hosts) + script + WAIT
            return Space(stack.enter_context(space(whole)))

        server = made(NAME, SERVER.format(v4=V4, v6=V6))
        houses = []
        for index, (family, megabits) in enumerate(families):
            name = f"house-{index + 1}"
            house = made(name, "")
            words = {"server": server.pid, "house": house.pid, "number": index + 11}
            router = made(f"router-{index + 1}", ROUTER.format(name=name, family=family, **words))
            if megabits:
                limit(router.pid, "wan", megabits)
            server.run(PLUG.format(name=name))
            house.run(HOUSE.format(family=family))
            houses.append(house)
        yield Houses(server=server, houses=houses)


def missing() -> str:
    """What a machine lacks for houses behind NAT; empty where it has everything."""
    if os.geteuid() != 0:
        return "root"
    return ", ".join(each for each in NEEDED if shutil.which(each) is None)


def _nsenter(pid: int) -> Sequence[str]:
    return "nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--"
