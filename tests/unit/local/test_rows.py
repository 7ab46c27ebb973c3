"""`atoll top`: every learner and shard in a row, from a run folder and from a cluster."""

import fcntl
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from typer.testing import CliRunner

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator import cli
from atoll_operator.api.runfile import TRAIN
from atoll_operator.kube import shards
from atoll_operator.local import manifests, rows
from atoll_operator.local import shards as local_shards
from atoll_operator.local.rows import Answer, table
from atoll_protos.errors import SpecError

BUILT_IN = Path(__file__).parents[3].joinpath("examples/tiny.yaml").read_text()
MANIFESTS_AND_UNITS = [
    (BUILT_IN, "loss, nats per byte"),
    (
        yaml.safe_dump(manifests.of_script(Path(__file__), [], learners=2, steps=8, regions=())),
        "loss",
    ),
    ("kind: [", "loss"),
]


def reply() -> pb.StatusReply:
    fine = pb.SlotStatus(
        slot="us-east-0", state=pb.SLOT_TRAINING, t_m=10, step_seconds=0.5, tokens=5000, loss=2.5,
        busy_share=0.875, blocked_seconds=1.25, late_share=0.125,
        merge_share=0.666,
    )  # fmt: skip
    new = pb.SlotStatus(slot="eu-west-0", state=pb.SLOT_JOINING, loss=math.nan)
    return pb.StatusReply(
        tick=12, commits=3, bytes_received=1_500_000, bytes_sent=999, slots=[fine, new],
        state=pb.SHARD_SERVING, quorum=2, grace_seconds=0.25,
    )  # fmt: skip


def test_a_row_says_speed_shares_and_node_and_what_is_not_known_is_a_dash() -> None:
    nodes = {"us-east-0": "node-1", "shard-0": "node-2"}
    answers = [Answer(reply()), Answer(None, "s-1:7700 does not answer (UNAVAILABLE)")]
    assert table(answers, nodes).splitlines() == [
        "LEARNER    STATE     STEP TIME  TOKENS/S  BUSY  BLOCKED  LATE  SHARE  LOSS   NODE",
        "us-east-0  Training  0.50 s     1,000     88%   1.2 s    12%   67%    2.500  node-1",
        "eu-west-0  Joining   -          -         -     -        -     -      -      -",
        "",
        "SHARD    STATE    TICK  COMMITS  QUORUM  GRACE   RECEIVED  SENT   NODE",
        "shard-0  Serving  12    3        2       0.25 s  1.5 MB    999 B  node-2",
        "shard-1  silent   -     -        -       -       -         -      -",
        "",
        "s-1:7700 does not answer (UNAVAILABLE)",
    ]


def test_a_loss_that_has_diverged_is_a_dash() -> None:
    shown = reply()
    shown.slots[0].loss = math.nan
    assert "nan" not in table([Answer(shown)], {})


def test_without_shard_0_nothing_is_said_of_learners() -> None:
    text = table([Answer(None, "s-0 does not answer"), Answer(reply())], {})
    assert text.startswith("learners: unknown while shard 0 is silent\n")
    assert "us-east-0" not in text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e9, "2.5 GB"), (3e15, "3000.0 TB")],
)
def test_bytes_are_told_in_a_unit_that_people_read(count: float, text: str) -> None:
    assert rows.size(count) == text


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that prints the file `said`, notes its words in `words`, and ends with `code`."""
    program = tmp_path / "bin/kubectl"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat {tmp_path}/said\n'
        f"cat {tmp_path}/errors >&2\nexit $(cat {tmp_path}/code)\n"
    )
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    (tmp_path / "errors").write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    found = shards.Shards(
        run_file="{}", endpoints=["s-0:7700"], namespace="team", pod="tiny-syncer-0-x",
        container="shard",
    )  # fmt: skip
    monkeypatch.setattr(shards, "shards_of", lambda *_: found)
    monkeypatch.setattr(shards, "commands_of_learners", lambda *_: [["python3", *TRAIN]])
    monkeypatch.setattr(shards, "nodes_of", lambda *_: {"us-east-0": "node-1"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_shards_of_a_job_are_asked_in_a_shards_pod(kubectl: Path) -> None:
    said: dict[str, Any] = json_format.MessageToDict(reply(), preserving_proto_field_name=True)
    silent = {"shard": 1, "problem": "s-1:7700 does not answer (UNAVAILABLE: gone)"}
    newer = {**said, "shard": 0, "field_of_a_later_version": 1}
    (kubectl / "said").write_text(f"{json.dumps(newer)}\n{json.dumps(silent)}\n")
    shown = CliRunner().invoke(cli.app, ["top", "tiny", "--context", "east"])
    assert shown.exit_code == 0, shown.output
    assert (
        "us-east-0  Training  0.50 s     1,000     88%   1.2 s    12%   67%    2.500  node-1"
        in shown.output
    )
    assert "shard-1  silent" in shown.output
    assert (kubectl / "words").read_text().strip() == (
        "--context east -n team exec tiny-syncer-0-x -c shard -- python3 -P -m atoll_syncer.asking"
    )


@pytest.mark.parametrize("verb", ["top", "plot"])
def test_what_a_pod_refuses_is_told_with_the_command_and_what_to_check(
    kubectl: Path, verb: str
) -> None:
    (kubectl / "said").write_text("")
    (kubectl / "errors").write_text("warning\nError: pods is forbidden\n")
    (kubectl / "code").write_text("1")
    done = CliRunner().invoke(cli.app, [verb, "tiny"])
    assert isinstance(done.exception, SpecError)
    assert "kubectl -n team exec tiny-syncer-0-x" in done.exception.field
    assert done.exception.problem == "Error: pods is forbidden"


def test_the_curves_of_a_job_are_drawn_from_what_its_shard_has_noted(kubectl: Path) -> None:
    losses = [{"slot": "a-0", "incarnation": 1, "loss": 2.0}]
    lines: list[dict[str, Any]] = [
        {"event": "commit", "tick": tick, "losses": losses} for tick in (1, 2, 3)
    ]
    (kubectl / "said").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(cli.app, ["plot", "tiny", "--out", "curves.svg"])
    assert done.exit_code == 0, done.output
    assert "curves.svg: as noted at the merges of a shard; 1 learners" in done.output
    assert "there is no held-out loss: spec.evaluator measures it" in done.output
    assert "<svg" in (kubectl / "curves.svg").read_text()
    assert "<!-- loss, nats per byte (moving average) -->" in (kubectl / "curves.svg").read_text()
    assert (kubectl / "words").read_text().strip().endswith("atoll_syncer.asking --curves")
    lines.append({"event": "evaluation", "tick": 2, "loss": 1.5})
    (kubectl / "said").write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = CliRunner().invoke(cli.app, ["plot", "tiny"])
    assert "held-out" not in again.output
    assert (kubectl / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_without_kubectl_it_is_named(kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(kubectl))
    done = CliRunner().invoke(cli.app, ["top", "tiny"])
    assert str(done.exception).startswith("kubectl: is not on the PATH")


def test_the_shards_of_a_run_folder_are_asked_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text("{}")
    processes = [
        {"role": "shard", "shard": 0, "endpoint": "127.0.0.1:7"},
        {"role": "learner", "slot": "us-east-0", "endpoint": ""},
    ]
    (tmp_path / "processes.json").write_text(json.dumps(processes))
    stopped = CliRunner().invoke(cli.app, ["top", str(tmp_path)])
    assert "nothing runs in it now; see atoll status" in str(stopped.exception)
    asked: list[list[str]] = []

    def ask(endpoints: list[str]) -> list[pb.StatusReply]:
        asked.append(endpoints)
        return [reply()]

    monkeypatch.setattr(local_shards, "ask", ask)
    with (tmp_path / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = CliRunner().invoke(cli.app, ["top", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert asked == [["127.0.0.1:7"]]
    assert "NODE" not in shown.output
    assert "us-east-0  Training" in shown.output


def test_a_silent_shard_of_a_run_folder_costs_its_row_alone() -> None:
    assert local_shards.ask(["127.0.0.1:1"]) == [None]


def test_of_a_run_folder_the_curves_come_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "learners").mkdir()
    line = {"slot": "a-0", "incarnation": 1, "tick": 1, "loss": 2.0}
    (tmp_path / "learners/a-0.jsonl").write_text(json.dumps(line) + "\n")
    picture = tmp_path / "x.png"
    done = CliRunner().invoke(cli.app, ["plot", str(tmp_path), "--out", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.exists()
    assert f"{picture}: 1 learners" in done.output
    written = picture.with_suffix(".svg")
    for manifest, unit in MANIFESTS_AND_UNITS:
        (tmp_path / "manifest.yaml").write_text(manifest)
        done = CliRunner().invoke(cli.app, ["plot", str(tmp_path), "--out", str(written)])
        assert done.exit_code == 0, done.output
        assert f"<!-- {unit} (moving average) -->" in written.read_text()
    wrong = CliRunner().invoke(cli.app, ["plot", str(tmp_path), "--out", str(tmp_path / "x.doc")])
    assert isinstance(wrong.exception, SpecError)
    assert "name a .png" in str(wrong.exception)
