"""A learner of two machines: the numbers of one machine, and one learner whichever is lost."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.run_files import read_lines
from atoll_operator.local.startable import free_ports
from atoll_operator.machines import bundle as bundles
from local.command import commits, json_lines, manifest, run_atoll
from local.law import check_law
from local.leftovers import check_none_is_left
from local.lockstep_model import BATCH, PERIOD, ROUNDS
from local.machines import two_hosts_script
from local.machines.commands import Commands, Machine, commands_in
from local.machines.nat import NAME, SERVER, START, V4, V6, WAIT, Space, missing
from wire.fake_pods import space

REGION, SLOT = "lab", "lab-0"
PORT = 7700
WIRE = """
ip link add eth0 type veth peer name {name} netns {server}
ip address add 203.0.113.{number}/24 dev eth0
ip link set eth0 up
"""
HOSTS = ("--set", "spec.learner.hosts=2")
THREE_OR_TWO = ("--set", "spec.learner.hosts=3", "--set", "spec.learner.hostsMin=2")


def written(folder: Path, steps: int) -> Path:
    job = folder / "job.yaml"
    sync: dict[str, Any] = {"preset": "DiLoCo", "period": PERIOD}
    script = Path(two_hosts_script.__file__)
    job.write_text(manifest(script, regions=[REGION], steps=steps, sync=sync))
    return job


def losses(folder: Path, region: str) -> dict[int, float]:
    """By step, as far as the job goes; learners may make some more."""
    lines = json_lines(folder / "learners" / f"{region}-0.jsonl")
    steps = range(1, ROUNDS * PERIOD + 1)
    return {line["t_m"]: line["loss"] for line in lines if line.get("t_m") in steps}


def export(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "export").glob("*.safetensors")}


def joined(here: Commands, line: str) -> list[Machine]:
    """Host 1 comes first, and waits."""
    (port,) = free_ports(1)
    meet = ("--rendezvous", f"127.0.0.1:{port}")
    second = here.join(line, "house-2", "--host", "1")
    second.says("lab-0, host 1 of 2, waits for host 0")
    first = here.join(line, "house-1", "--host", "0", *meet)
    return [first, second]


@contextmanager
def one_network(folder: Path) -> Iterator[list[Space]]:
    """A server and two machines beside it, which do not know their own names' addresses."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{V4.public}1 {NAME}\n")
    with ExitStack() as stack:

        def made(name: str, script: str) -> Space:
            return Space(
                stack.enter_context(space(START.format(name=name, hosts=hosts) + script + WAIT))
            )

        found = [made(NAME, SERVER.format(v4=V4, v6=V6, number=1))]
        for number in (1, 2):
            name = f"house-{number}"
            found.append(made(name, WIRE.format(name=name, server=found[0].pid, number=number + 1)))
            found[0].run(f"ip link set {name} master wan up")
        yield found


def steps_of(house: Machine) -> list[dict[str, Any]]:
    lines = read_lines(house.out / "learners" / f"{SLOT}.jsonl")
    return [line for line in lines if line.get("t_m")]


def test_a_learner_of_two_machines_equals_that_of_one(tmp_path: Path) -> None:
    job, one = written(tmp_path, ROUNDS * PERIOD), tmp_path / "one"
    run_atoll(job, one, *HOSTS)
    with commands_in(tmp_path) as here:
        server = here.serve(job, *HOSTS)
        houses = joined(here, server.says("ATOLL_TOKEN="))
        assert [each.end() for each in (*houses, server)] == [0, 0, 0], server.logs()
        for house in houses:
            check_none_is_left(house.out)
    assert export(server.out) == export(one) != {}
    known = losses(one, REGION)
    assert len(known) == ROUNDS * PERIOD
    assert losses(houses[0].out, REGION) == known
    counted = [x["tokens"] for x in steps_of(houses[0]) if x["t_m"] <= ROUNDS * PERIOD]
    assert sum(counted) == 2 * BATCH * ROUNDS * PERIOD  # lines of values taken have none
    assert not steps_of(houses[1])  # rank 0 speaks for the learner


@pytest.mark.fresh
@pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}, for machines of one network")
def test_two_machines_of_one_network_meet_whatever_their_names_say(tmp_path: Path) -> None:
    job = written(tmp_path, PERIOD)
    serve = ("serve", job, "--out", tmp_path / "served", "--output", "lines", *HOSTS)
    with one_network(tmp_path) as (server, *places), commands_in(tmp_path) as here:
        listen = f"0.0.0.0:{PORT}"
        served = here.atoll(tmp_path / "served", *serve, "--listen", listen, within=server.enter)
        line = served.says("ATOLL_TOKEN=").replace("0.0.0.0", NAME)
        houses = [
            here.join(line, f"house-{host + 1}", "--host", host, within=places[host].enter)
            for host in (1, 0)
        ]
        assert [each.end() for each in (*houses, served)] == [0, 0, 0], served.logs()
        assert f"meets the others at {V4.public}2:29400" in houses[1].text()
        for house in houses:
            check_none_is_left(house.out)
            logs = "".join(path.read_text() for path in house.out.glob("logs/*.log"))
            assert "will be noticed late" not in logs
    assert list((tmp_path / "served" / "export").glob("*.safetensors"))


@pytest.mark.long  # launchers start six times
def test_each_machine_of_a_learner_is_killed_and_both_come_back(tmp_path: Path) -> None:
    job = written(tmp_path, 100_000)
    with commands_in(tmp_path) as here:
        server = here.serve(job, *HOSTS)
        houses = joined(here, server.says("ATOLL_TOKEN="))

        def back(number: int) -> None:
            def found() -> bool:
                numbers = {line["incarnation"] for line in steps_of(houses[0])}
                return numbers == {*range(1, number + 1)}

            server.until(found, f"steps of incarnation {number}")

        back(1)
        before = commits(server.out)
        for number, lost in ((2, 1), (3, 0)):
            houses[lost].process.send_signal(signal.SIGKILL)
            houses[lost].process.wait()
            check_none_is_left(houses[lost].out)
            houses[lost] = here.join("", f"house-{lost + 1}")
            back(number)
        slots = [bundles.read(each.out) for each in houses]
        assert [(each.slots, each.host) for each in slots if each] == [((SLOT,), 0), ((SLOT,), 1)]
        server.until(lambda: len(commits(server.out)) > len(before) + 4, "commits")
        assert here.atoll(server.out, "stop", server.out).end() == 0
        assert [each.end() for each in (*houses, server)] == [0, 0, 0], server.logs()
    assert all(each in commits(server.out) for each in before)
    assert list((server.out / "export").glob("*.safetensors"))
    check_law(server.out, *(each.out for each in houses))
    for house in houses:
        check_none_is_left(house.out)
