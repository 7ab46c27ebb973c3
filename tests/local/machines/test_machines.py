"""A job over two machines that only dial out, from nothing to the model; and each of them lost."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.local_status import ShownMachine, read_machines
from local.command import LIGHT, TINY, commits
from local.law import check_law
from local.leftovers import check_none_is_left
from local.machines.commands import commands_in

TWO = (
    *("--set", "spec.regions=[{name: us-east}, {name: eu-west}]", "--set", "spec.evaluator="),
    *("--set", "spec.sync.period=8", *LIGHT),
)
REGIONS = ("us-east", "eu-west")
PRIVATE = 0o077


def name_of(machine: ShownMachine) -> str:
    return machine.name


def check_is_accounted(summary: dict[str, Any]) -> None:
    """Every byte belongs to a machine, and every learner has its tokens."""
    machines, learners = summary["machines"].values(), summary["learners"]
    moved = {way: sum(each[f"{way}_bytes"] for each in machines) for way in ("up", "down")}
    assert moved == summary["bytes"]
    assert [*learners] == ["eu-west-0", "us-east-0"]
    assert sum(each["share"] for each in learners.values()) == pytest.approx(1.0)
    assert sum(each["merged"] for each in learners.values()) == pytest.approx(
        summary["tokens"]["merged"], abs=2
    )
    assert all(0.0 < each["busy_share"] <= 1.0 for each in learners.values())


def steps(count: int) -> tuple[str, str]:
    return "--set", f"spec.steps={count}"


def merged(out: Path) -> set[str]:
    """The slots whose work is in the newest commit."""
    found = commits(out)
    return {part["slot"] for part in found[-1]["participants"]} if found else set()


def test_two_machines_train_one_model_over_tls_and_one_hears_of_its_end_late(
    tmp_path: Path,
) -> None:
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(200))
        line = server.says("ATOLL_TOKEN=")
        us = here.join(line, "house-1", "--region", "us-east")
        eu = here.join(line, "house-2", "--region", "eu-west")
        server.until(lambda: len(merged(server.out)) == 2, "merges of both")
        eu.process.send_signal(signal.SIGKILL)  # and it is off when the job completes
        eu.process.wait()
        assert (us.end(), server.end()) == (0, 0), server.logs()
        assert "house-1 has entered" in server.text()
        assert list((server.out / "export").glob("*.safetensors"))
        both = {part["slot"] for each in commits(server.out) for part in each["participants"]}
        assert both == {"us-east-0", "eu-west-0"}
        summary = json.loads((server.out / "summary.json").read_text())
        assert summary["result"] == "Complete"
        assert summary["tokens"]["merged"] > 0
        assert summary["without_work"] == []
        check_is_accounted(summary)
        seen = read_machines(server.out)
        assert seen is not None
        assert [(x.name, x.region, x.address) for x in sorted(seen.machines, key=name_of)] == [
            ("house-1", "us-east", "127.0.0.1"),
            ("house-2", "eu-west", "127.0.0.1"),
        ]
        for each in seen.machines:
            assert min(each.up_bytes, each.down_bytes) > 0
        assert (us.out / "learners").is_dir()
        check_none_is_left(us.out)
        # Nothing that proves who somebody is can be read by others, or is on the other side.
        kept = [*us.out.rglob("*.key"), us.out / "machine.key"]
        assert kept
        secret = [*kept, *(server.out / "machines").rglob("*.json")]
        assert not [path for path in secret if path.stat().st_mode & PRIVATE]
        keys = {path.read_bytes() for path in server.out.rglob("*.key")}
        assert not keys & {path.read_bytes() for path in us.out.rglob("*.key")}


def test_a_region_is_new_while_the_job_trains_and_a_machine_brings_its_learner(
    tmp_path: Path,
) -> None:
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(100_000), "--here", "us-east")
        eu = here.join(server.says("ATOLL_TOKEN="), "house-1", "--region", "eu-west")
        server.until(lambda: len(merged(server.out)) == 2, "merges of both")
        before = [server.row(name) for name in ("us-east-0", 0, 1)]
        assert here.atoll(tmp_path, "edit", server.out, "--learners", "asia=1").end() == 0
        server.says("asia is a new region; its learners: 1")
        made = here.atoll(tmp_path, "tokens", server.out, "--region", "asia")
        assert made.end() == 0, made.text()
        asia = here.join(made.text(), "house-2")
        server.until(lambda: len(merged(server.out)) == 3, "merges of three")
        assert [server.row(name) for name in ("us-east-0", 0, 1)] == before
        assert here.atoll(tmp_path, "stop", server.out).end() == 0
        assert [each.end() for each in (eu, asia, server)] == [0, 0, 0], server.logs()
        assert list((server.out / "export").glob("*.safetensors"))
        check_law(server.out, eu.out, asia.out)


def test_a_machine_that_is_revoked_is_out_at_once_and_one_that_leaves_comes_back(
    tmp_path: Path,
) -> None:
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(100_000))
        line = server.says("ATOLL_TOKEN=")
        us = here.join(line, "house-1", "--region", "us-east")
        eu = here.join(line, "house-2", "--region", "eu-west")
        server.until(lambda: len(merged(server.out)) == 2, "merges of both")
        assert us.finish(signal.SIGTERM)[0] == 130
        assert "learners leave in order" in us.text()
        check_none_is_left(us.out)
        us = here.join("", "house-1")
        us.says("us-east-0")
        assert here.atoll(tmp_path, "tokens", server.out, "--revoke", "house-2").end() == 0
        assert eu.end() == 1
        assert "machine house-2: is not one of this job: it was revoked" in eu.text()
        check_none_is_left(eu.out)
        made = here.atoll(tmp_path, "tokens", server.out, "--uses", 1)
        assert made.end() == 0
        third = here.join(made.text(), "house-3", "--region", "eu-west")
        third.says("eu-west-0")
        before = len(commits(server.out))
        server.until(lambda: len(commits(server.out)) > before + 2, "commits")
        assert server.finish(signal.SIGTERM)[0] == 130
        assert "(atoll serve " in server.text()


def test_the_server_comes_back_at_another_address_and_machines_find_it_by_its_certificate(
    tmp_path: Path,
) -> None:
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(300))
        line = server.says("ATOLL_TOKEN=")
        both = [here.join(line, f"house-{i}", "--region", r) for i, r in enumerate(REGIONS)]
        server.until(lambda: len(commits(server.out)) > 4, "commits")
        for house in (server, *both):
            house.process.send_signal(signal.SIGKILL)
            house.process.wait()
        moved = f"127.0.0.2:{here.port}"
        words = ("serve", server.out, "--listen", moved, "--output", "lines")
        server = here.atoll(server.out, *words)
        server.says(moved)
        both = [
            here.atoll(x.out, "join", moved, "--name", x.out.name, "--state", x.out) for x in both
        ]
        assert [each.end() for each in (*both, server)] == [0, 0, 0], server.logs()
        assert len({each["run"] for each in commits(server.out)}) == 1
