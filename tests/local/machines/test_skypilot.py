"""The files of examples/skypilot, as SkyPilot's own parser reads them, and a learner's lines."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.api.job.parsing import parse
from local import installed
from local.command import TESTS, TINY, commits
from local.machines.commands import LINE, Machine, commands_in
from local.machines.test_machines import TWO, merged, steps

pytestmark = [
    pytest.mark.long,  # to install SkyPilot takes minutes
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a namespace without a network"),
]
FILES = TESTS.parent / "examples" / "skypilot"
SCRIPT = Path(__file__).with_name("skypilot_script.py")
GIVEN = {"SERVER": "203.0.113.7:7700", "REGION": "us-east", "ATOLL_TOKEN": "t"}
PORT = 7700


def parsed(home: Path, file: str, given: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Where nothing can be asked of anybody."""
    words = [f"{name}={value}" for name, value in given.items()]
    return subprocess.run(
        ["unshare", "--net", installed.skypilot(), SCRIPT, FILES / file, *words],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def read(home: Path, file: str, given: Mapping[str, str]) -> dict[str, Any]:
    done = parsed(home, file, given)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_server_has_a_port_for_machines_and_one_for_each_shard(tmp_path: Path) -> None:
    found = read(tmp_path, "serve.yaml", {})
    shards = parse(TINY.read_text()).spec.syncer.shards
    assert found["ports"] == [[f"{PORT}-{PORT + shards}"]]
    assert f"atoll serve examples/{TINY.name} --listen 0.0.0.0:{PORT} " in found["run"]


def test_a_learner_is_on_a_spot_machine_and_what_it_needs_is_asked_for(tmp_path: Path) -> None:
    found = read(tmp_path, "learner.yaml", GIVEN)
    assert set(found["spot"]) == {True}
    assert all(each["strategy"] for each in found["recovery"])
    assert found["mounts"] == ["/kept"]
    assert {*GIVEN} < {*found["variables"]}
    for name in ("SERVER", "REGION"):  # a secret may be one that SkyPilot keeps
        without = {each: value for each, value in GIVEN.items() if each != name}
        refused = parsed(tmp_path, "learner.yaml", without)
        assert refused.returncode != 0
        assert f"'{name}' is None" in refused.stderr


def test_a_machine_that_replaces_one_has_its_slot(tmp_path: Path) -> None:
    lines = read(tmp_path, "learner.yaml", GIVEN)["run"]
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(1_000_000))
        line = LINE.search(server.says("ATOLL_TOKEN="))
        assert line is not None
        token, place = line.groups()

        def rented(number: int) -> Machine:
            """A machine with nothing but what SkyPilot gives it, and this environment."""
            home = tmp_path / f"rented-{number}"
            home.mkdir()
            (home / "venv").symlink_to(sys.prefix)
            given = {
                **{"HOME": home, "KEPT": tmp_path / "kept", "SKYPILOT_TASK_ID": "sky-1"},
                **{"SERVER": place, "REGION": "us-east", "ATOLL_TOKEN": token},
            }
            variables = [f"{name}={value}" for name, value in given.items()]
            state = home / "atoll-state"
            return here.atoll(state, within=["env", *variables, "bash", "-c", lines])

        first = rented(1)
        server.until(lambda: merged(server.out) == {"us-east-0"}, "merges of it")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        second = rented(2)
        second.says("machine us-east of job tiny: us-east-0")
        before = len(commits(server.out))
        server.until(
            lambda: any(each["participants"] for each in commits(server.out)[before:]), "a merge"
        )
        kept = [*(tmp_path / "kept").rglob("*"), second.out / "job.json"]
        assert not [each for each in kept if each.stat().st_mode & 0o077]
        assert server.text().count("has entered") == 1
        assert second.finish(signal.SIGTERM)[0] == 130
