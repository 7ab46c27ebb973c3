"""A machine with a folder of credentials that a person has brought, as for a job of a cluster.

Here `atoll serve` has the shards, and its authority makes the credentials; the shards are the same
processes as in pods. tests/cluster/test_two_clusters.py has the whole way out of a cluster.
"""

import json
import shutil
import time
from pathlib import Path

import pytest

from atoll_operator.authority.job_authority import DAY_SECONDS, Authorities, issue
from atoll_operator.local.run_files import MACHINES_FOLDER, OBSERVER_FOLDER, RUN_FILE
from atoll_operator.local.startable import free_ports
from atoll_operator.machines.bundle import Bundle, write
from atoll_operator.machines.server.register import AUTHORITY_FILE
from atoll_operator.machines.server.serving import read_server
from atoll_protos.network.credentials import Credentials, Identity, Role
from cluster import light
from local.command import TINY, commits
from local.law import check_law
from local.leftovers import check_none_is_left
from local.lockstep_model import BATCH, PERIOD
from local.machines import two_hosts_script
from local.machines.commands import Machine, commands_in
from local.machines.test_hosts import HOSTS, steps_of, written
from local.machines.test_hosts import REGION as LAB

REGION = "eu-west"
JOB = (
    *("--set", "spec.regions=[{name: eu-west, learners: 2}]", "--set", "spec.evaluator="),
    *("--set", "spec.syncer.region=eu-west", "--set", "spec.sync.quorum=1"),
    *("--set", "spec.sync.period=8", "--set", "spec.steps=100000"),
)
LIGHT = ("--", "atoll-worker", "light:main", "--batch=2", "--step-milliseconds-min=50")
FIRST_SECONDS = 45.0  # in which a learner without torch joins on a busy machine, too


def bring(
    server: Machine, folder: Path, seconds: float = 30 * DAY_SECONDS, region: str = REGION
) -> Credentials:
    """As `atoll credentials --files` does."""
    machines = server.out / MACHINES_FOLDER
    texts = json.loads((machines / AUTHORITY_FILE).read_text())
    authorities = Authorities.from_files({name: text.encode() for name, text in texts.items()})
    owner = Credentials.read(server.out / OBSERVER_FOLDER).identity.owner
    who = Identity(
        namespace=owner.namespace,
        job=owner.job,
        uid=owner.uid,
        region=region,
        role=Role.LEARNER,
    )
    made = issue(authorities, who, time.time(), seconds)
    job = Bundle(
        job=owner.job,
        region=region,
        learners=2,
        endpoints=tuple(f"127.0.0.1:{port}" for port in read_server(machines).ports),
        container="{}",
    )
    write(folder, job, (server.out / RUN_FILE).read_text(), made)
    return made


def test_new_credentials_reach_a_learner_as_it_trains_and_two_machines_have_slots_of_their_own(
    tmp_path: Path,
) -> None:
    shutil.copy(light.__file__, tmp_path)
    folder = tmp_path / "brought"
    with commands_in(tmp_path) as here:

        def joins(name: str, *words: str) -> Machine:
            own = ("--credentials", folder, "--state", tmp_path / name, "--name", name)
            return here.atoll(tmp_path / name, "join", *own, *words, *LIGHT)

        def merge(*slots: str) -> bool:
            """Whether a commit from now on has the work of each."""
            new = commits(server.out)[before:]
            return {part["slot"] for each in new for part in each["participants"]} >= {*slots}

        server, before = here.serve(TINY, *JOB), 0
        server.says("ATOLL_TOKEN=")
        first = bring(server, folder, FIRST_SECONDS)
        one = joins("house-1")
        server.until(lambda: merge("eu-west-0"), "work of the first machine")
        learner = one.row("eu-west-0")
        bring(server, folder)
        one.says("are new: learners take them as they run")
        second = joins("house-2")
        assert second.end() != 0
        assert "eu-west-0 is held by a learner of another machine" in second.text()
        second = joins("house-2", "--first-slot", "1")
        server.until(lambda: time.time() > first.not_after + 1, "the end of the first certificate")
        before = len(commits(server.out))
        server.until(lambda: merge("eu-west-0", "eu-west-1"), "work of both")
        assert one.row("eu-west-0") == learner  # the same process, in a session of its own
        assert here.atoll(tmp_path, "stop", server.out).end() == 0
        assert (one.end(), second.end(), server.end()) == (0, 0, 0), server.logs()
        for machine in (one, second):
            assert "complete" in machine.text()
            check_none_is_left(machine.out)


@pytest.mark.long
def test_two_machines_with_credentials_are_one_learner(tmp_path: Path) -> None:
    folder, (port,) = tmp_path / "brought", free_ports(1)
    with commands_in(tmp_path) as here:

        def joins(host: int) -> Machine:
            state = tmp_path / f"house-{host}"
            own = ("--credentials", folder, "--state", state, "--hosts", 2, "--host", host)
            meet = ("--rendezvous", f"127.0.0.1:{port}")
            return here.atoll(state, "join", *own, *meet, "--", two_hosts_script.__file__)

        server = here.serve(written(tmp_path, 4 * PERIOD), *HOSTS)
        server.says("ATOLL_TOKEN=")
        bring(server, folder, region=LAB)
        second, head = joins(1), joins(0)
        assert [each.end() for each in (head, second, server)] == [0, 0, 0], server.logs()
    assert {each["tokens"] for each in steps_of(head)} - {0} == {2 * BATCH}
    check_law(server.out, head.out, second.out)
