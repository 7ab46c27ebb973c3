"""Two houses behind NAT train with a server that cannot dial them, also after one was cut off."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.machines.joined import folder as joined_folder
from local.command import TINY, commits
from local.law import check_law, learners_lines
from local.leftovers import check_none_is_left
from local.machines.commands import Machine, commands_in
from local.machines.nat import NAME, V4, V6, Space, behind_nat, missing
from local.machines.test_machines import TWO, steps

# A forked learner would be where the server of forks is, and not in its house.
pytestmark = [
    pytest.mark.fresh,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}, for houses behind NAT"),
]
PORT = 7700
HOUSES = ((V4, 20.0), (V6, 20.0))  # Mbit/s up
ALONE = 3  # commits without the house that is cut off
BOTH = {"us-east-0", "eu-west-0"}
ARGUMENTS = "['--batch=2', '--context=32', '--step-milliseconds-min=50']"
JOB = (
    *(*TWO, "--set", f"spec.learner.template.spec.containers=[{{args: {ARGUMENTS}}}]"),
    *("--set", "spec.sync.wire.up=int4", *steps(800)),
)
SERVE = ("serve", TINY, "--listen", f"0.0.0.0:{PORT}", "--output", "lines", *JOB)
LISTENER = f"""
import socket
listener = socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    listener.accept()[0].close()
"""
REACHED = "import socket; socket.create_connection(('{}', {}), 10)"


def slots_of(house: Machine) -> tuple[str, ...]:
    machine = joined_folder.read(house.out)
    assert machine is not None
    return machine.slots


def merged(out: Path, before: Sequence[Mapping[str, Any]] = ()) -> list[set[str]]:
    """The slots of each commit that has work and is not among those."""
    new = [each["participants"] for each in commits(out) if each not in before]
    return [{part["slot"] for part in parts} for parts in new if parts]


def reaches(source: Space, target: str, port: int) -> bool:
    """Whether a TCP connection comes about."""
    words = [*source.enter, sys.executable, "-c", REACHED.format(target, port)]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def test_a_house_dials_the_server_and_nobody_dials_a_house(tmp_path: Path) -> None:
    with behind_nat(tmp_path, *HOUSES) as place, ExitStack() as stack:
        spaces = (place.server, *place.houses)
        for each in spaces:
            stack.enter_context(listening(each))
        for house, family, number in zip(place.houses, (V4, V6), (11, 12), strict=True):
            assert reaches(house, "localhost", PORT)
            assert reaches(house, NAME, PORT)
            for target in (f"{family.private}2", f"{family.public}{number}"):
                assert not reaches(place.server, target, PORT)
            # Not even if it knows the way.
            way = f"{family.private}2 via {family.public}{number}"
            place.server.run(f"ip {family.option} route add {way}")
            assert not reaches(place.server, f"{family.private}2", PORT)


@contextmanager
def listening(space: Space) -> Iterator[None]:
    """A process there takes connections at the port, of both families."""
    words = [*space.enter, sys.executable, "-c", LISTENER]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def test_two_houses_behind_nat_train_one_model_and_one_of_them_is_cut_off_for_a_while(
    tmp_path: Path,
) -> None:
    out = tmp_path / "served"
    with behind_nat(tmp_path, *HOUSES) as place, commands_in(tmp_path) as here:
        server = here.atoll(out, *SERVE, "--out", out, within=place.server.enter)
        line = server.says("--token")
        assert f"atoll join {NAME}:{PORT} " in line
        v4, v6 = (each.enter for each in place.houses)
        us = here.join(line, "house-1", "--region", "us-east", within=v4)
        eu = here.join(line, "house-2", "--region", "eu-west", within=v6)
        assert f"house-1 has entered from {V4.public}11:" in server.says("house-1 has entered")
        assert f"house-2 has entered from [{V6.public}12]:" in server.says("house-2 has entered")
        server.until(lambda: BOTH in merged(out), "a merge of both")
        slots = [slots_of(us), slots_of(eu)]

        with place.cut(0):
            us.says(f"{NAME}:{PORT} does not answer")
            there = commits(out)
            alone = {"eu-west-0"}
            server.until(lambda: merged(out, there).count(alone) > ALONE, "commits of one house")
        us.says(f"{NAME}:{PORT} answers again")
        since = commits(out)
        server.until(lambda: BOTH in merged(out, since), "a merge of both after the cut")

        assert (us.end(), eu.end(), server.end()) == (0, 0, 0), server.logs()
        assert [slots_of(us), slots_of(eu)] == slots == [("us-east-0",), ("eu-west-0",)]
    found = commits(out)
    assert all(each in found for each in there)
    check_law(out, us.out, eu.out)
    assert {each["slot"] for each in learners_lines(us.out)} == {"us-east-0"}
    assert list((out / "export").glob("*.safetensors"))
    check_none_is_left(us.out)
    check_none_is_left(eu.out)
