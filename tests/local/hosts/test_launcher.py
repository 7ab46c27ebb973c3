"""`atoll run --processes-per-learner`: the processes of a learner live and end as one."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll_protos.environment import Env
from local.background import LOOK_SECONDS, SECONDS_MAX
from local.hosts.launched import ranks_of
from local.leftovers import lives

RANKS = 2
PROCESSES = ("--processes-per-learner", str(RANKS))
LISTENS, LOOPBACK = "0A", "0100007F"  # a state and an address in /proc/net/tcp
LISTENERS = """
import pathlib, sys, time
from torch import distributed, nn
distributed.init_process_group("gloo")
nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
distributed.barrier()
folder = pathlib.Path(sys.argv[1])
(folder / str(distributed.get_rank())).touch()
while not (folder / "seen").exists():
    time.sleep(0.05)
"""


def addresses(pids: set[int]) -> set[str]:
    """On which addresses processes listen, as /proc/net has them."""
    descriptors = [path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = {os.readlink(path) for path in descriptors if path.exists()}
    found = set[str]()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in sockets:
                found.add(local.partition(":")[0])
    return found


def test_the_processes_of_one_host_listen_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    script = tmp_path / "listeners.py"
    script.write_text(LISTENERS)
    launch = [sys.executable, "-m", "atoll_worker", "launch", "--nproc-per-node", str(RANKS)]
    environment = {name: text for name, text in os.environ.items() if name != Env.HEALTH_PORT}
    with subprocess.Popen([*launch, "--", str(script), str(tmp_path)], env=environment) as launcher:
        deadline = time.monotonic() + SECONDS_MAX
        while not all((tmp_path / str(rank)).exists() for rank in range(RANKS)):
            assert time.monotonic() < deadline
            assert launcher.poll() is None
            time.sleep(LOOK_SECONDS)
        found = addresses({launcher.pid, *ranks_of(launcher.pid).values()})
        (tmp_path / "seen").touch()
    assert found == {LOOPBACK}
    assert launcher.returncode == 0


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="the system has no setpriv")
def test_the_ranks_of_a_launcher_that_is_killed_end_with_it(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "atoll_worker", "launch", "--nproc-per-node", str(RANKS)]
    script = f"echo $$ > {tmp_path}/$RANK.new; mv {tmp_path}/$RANK.new {tmp_path}/$RANK.pid; "
    with subprocess.Popen([*launch, "--", "sh", "-c", f"{script} exec sleep 600"]) as launcher:
        deadline = time.monotonic() + SECONDS_MAX
        while len(found := [*tmp_path.glob("*.pid")]) < RANKS and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        pids = [int(path.read_text()) for path in found]
        launcher.kill()
    assert len(pids) == RANKS
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    assert not any(map(lives, pids))
