"""`atoll-worker launch` on several hosts: each is a launcher, and all are on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atoll_operator.local.supervision.ports import free_ports
from atoll_protos.torchrun import Torchrun, of_hosts
from local.background import LOOK_SECONDS, SECONDS_MAX

HOSTS = 2
SOON = "keep_alive_interval=5"  # who is gone is missed after 15 seconds
# Each start of a rank writes a line and waits to be told how to end.
RANK = """
    echo "$ATOLL_HOST $RANK $WORLD_SIZE" >> starts
    trap 'exit 75' TERM
    while [ ! -e end-$ATOLL_HOST ]; do sleep 0.05; done
    read code < end-$ATOLL_HOST
    rm end-$ATOLL_HOST
    exit $code
"""


@dataclass(slots=True)
class Hosts:
    """The launchers of one learner, by host; it trains with `hosts_min` of them."""

    folder: Path
    hosts_min: int = HOSTS
    port: int = field(default_factory=lambda: free_ports(1)[0])
    launchers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, host: int) -> None:
        given = of_hosts(
            slot="us-0",
            hosts=HOSTS,
            hosts_min=self.hosts_min,
            processes=1,
            first_host=f"127.0.0.1:{self.port}",
            host=host,
        )
        self.launchers[host] = subprocess.Popen(
            [sys.executable, "-m", "atoll_worker", "launch", "--", "sh", "-c", RANK],
            cwd=self.folder,
            env={**os.environ, **given, Torchrun.CONF: SOON},
        )

    def starts(self) -> list[list[str]]:
        """Host, rank and number of ranks of each start."""
        path = self.folder / "starts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def until_started(self, host: int, ranks: int) -> None:
        """Its last start was as one of so many ranks."""
        wanted = [str(host), str(host), str(ranks)]

        def started() -> bool:
            own = [each for each in self.starts() if each[0] == str(host)]
            return own[-1:] == [wanted]

        until(started, f"a start of host {host} as one of {ranks}")

    def until_met(self, times: int) -> None:
        """All have met so often; the last time every rank was on the host of its number."""
        until(lambda: len(self.starts()) >= times * HOSTS, "a meeting")
        wanted = [[str(host), str(host), str(HOSTS)] for host in range(HOSTS)]
        assert sorted(self.starts()[-HOSTS:]) == wanted

    def tell(self, host: int, code: int) -> None:
        """The rank of this host ends with a code."""
        new, told = self.folder / "new", self.folder / f"end-{host}"
        new.write_text(f"{code}\n")
        new.rename(told)
        until(lambda: not told.exists(), f"the end of the rank of host {host}")

    def ended(self, host: int) -> int:
        """The code with which its launcher ends by itself."""
        return self.launchers[host].wait(SECONDS_MAX)


def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not look():
        assert time.monotonic() < deadline, f"{what} does not come"
        time.sleep(LOOK_SECONDS)


@contextmanager
def two_hosts(folder: Path, hosts_min: int = HOSTS) -> Iterator[Hosts]:
    """Host 1 begins first, so that its process has the smaller number."""
    hosts = Hosts(folder, hosts_min)
    try:
        for host in (1, 0):
            hosts.start(host)
        for host in (1, 0):
            hosts.until_started(host, HOSTS)
        yield hosts
    finally:
        for launcher in hosts.launchers.values():
            launcher.kill()
            launcher.wait()


def test_the_host_whose_rank_fails_ends_with_its_code_and_the_other_waits_for_it(
    tmp_path: Path,
) -> None:
    with two_hosts(tmp_path) as hosts:
        hosts.tell(1, 70)
        hosts.tell(0, 75)
        assert hosts.ended(1) == 70
        hosts.start(1)
        hosts.until_met(2)
        for host in range(HOSTS):
            hosts.tell(host, 0)
        assert [hosts.ended(host) for host in range(HOSTS)] == [0, 0]


@pytest.mark.long  # two more starts of torch each
def test_the_host_that_is_killed_is_waited_for_unless_it_is_host_0(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        hosts.launchers[1].kill()
        hosts.launchers[1].wait()
        hosts.tell(0, 1)  # no failure of its own: the other is gone
        hosts.start(1)
        hosts.until_met(2)
        hosts.launchers[0].kill()
        hosts.launchers[0].wait()
        assert hosts.ended(1) == 75
        for host in (1, 0):
            hosts.start(host)
        hosts.until_met(3)
        hosts.launchers[1].send_signal(signal.SIGTERM)
        assert hosts.ended(1) == -signal.SIGTERM


@pytest.mark.long  # two more starts of torch
def test_where_one_host_is_enough_a_rank_that_notices_nothing_goes_on_alone_and_is_met_again(
    tmp_path: Path,
) -> None:
    with two_hosts(tmp_path, hosts_min=1) as hosts:
        hosts.launchers[1].kill()
        hosts.launchers[1].wait()
        hosts.until_started(0, 1)
        hosts.start(1)
        for host in range(HOSTS):
            hosts.until_started(host, HOSTS)
        for host in range(HOSTS):
            hosts.tell(host, 0)
        assert [hosts.ended(host) for host in range(HOSTS)] == [0, 0]
