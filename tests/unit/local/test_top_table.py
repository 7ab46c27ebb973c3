"""`atoll top`: every learner and shard in a row, from a run folder and from a cluster."""

import fcntl
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from typer.testing import CliRunner

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator import cli
from atoll_operator.client import job_client
from atoll_operator.local import poller as local_shards
from atoll_operator.local.local_status import MACHINES_FILE, MachinesFile, ShownMachine, to_json
from atoll_operator.local.show.live import Answer, table
from atoll_protos.errors import SpecError


def atoll(*words: str | Path) -> str:
    """What a verb prints; the problem of one that is refused."""
    done = CliRunner().invoke(cli.app, [str(each) for each in words])
    assert done.exit_code == 0 or isinstance(done.exception, SpecError), done.output
    return done.output if done.exit_code == 0 else str(done.exception)


def reply() -> pb.StatusReply:
    fine = pb.SlotStatus(
        slot="us-east-0", state=pb.SLOT_TRAINING, t_m=10, step_seconds=0.5, tokens=40, loss=2.5,
        merge_tokens_per_step=500.0,  # it joined late, and its steps count from the job's
        busy_share=0.875, blocked_seconds=1.25, late_share=0.125,
        merge_share=0.666,
    )  # fmt: skip
    new = pb.SlotStatus(slot="eu-west-0", state=pb.SLOT_JOINING, loss=math.nan)
    return pb.StatusReply(
        tick=12, commits=3, bytes_received=1_500_000, bytes_sent=999, slots=[fine, new],
        state=pb.SHARD_SERVING, quorum=2, grace_seconds=0.25,
    )  # fmt: skip


ROW = "us-east-0  Training  0.50 s     1,000     88%   1.2 s    12%   67%    2.500"


def test_a_row_says_speed_shares_and_node_and_what_is_not_known_is_a_dash() -> None:
    nodes = {"us-east-0": "node-1", "shard-0": "node-2"}
    found = reply()
    answers = [Answer(found), Answer(None, "s-1:7700 does not answer (UNAVAILABLE)")]
    assert table(answers, nodes).splitlines() == [
        "LEARNER    STATE     STEP TIME  TOKENS/S  BUSY  BLOCKED  LATE  SHARE  LOSS   NODE",
        f"{ROW}  node-1",
        "eu-west-0  Joining   -          -         -     -        -     -      -      -",
        "",
        "SHARD    STATE    TICK  COMMITS  QUORUM  GRACE   RECEIVED  SENT       NODE",
        "shard-0  Serving  12    3        2       0.25 s  1.5 MB    999 bytes  node-2",
        "shard-1  silent   -     -        -       -       -         -          -",
        "",
        "s-1:7700 does not answer (UNAVAILABLE)",
    ]
    found.slots[1].state, found.unread = pb.SLOT_STALLED, 2
    text = table(answers, nodes)  # in a first step that takes long, beside a shard that reads
    assert "eu-west-0  Starting  -" in text
    assert "shard-0  Reading  12" in text
    diverged = reply()
    diverged.slots[0].loss = math.nan
    assert "nan" not in table([Answer(diverged)], {})
    text = table([Answer(None, "s-0 does not answer"), Answer(reply())], {})
    assert text.startswith("learners: unknown while shard 0 is silent\n")
    assert "us-east-0" not in text


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
    found = job_client.Shards(namespace="team", pod="tiny-syncer-0-x", container="shard")
    monkeypatch.setattr(job_client, "shards_of", lambda *_: found)
    monkeypatch.setattr(job_client, "nodes_of", lambda *_: {"us-east-0": "node-1"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_shards_of_a_job_are_asked_in_a_shards_pod(kubectl: Path) -> None:
    said: dict[str, Any] = json_format.MessageToDict(reply(), preserving_proto_field_name=True)
    silent = {"shard": 1, "problem": "s-1:7700 does not answer (UNAVAILABLE: gone)"}
    say(kubectl, {**said, "shard": 0, "field_of_a_later_version": 1}, silent)
    shown = atoll("top", "tiny", "--context", "east")
    assert f"\n{ROW}  node-1\n" in shown
    assert "shard-1  silent" in shown
    assert (kubectl / "words").read_text().strip() == (
        "--context east -n team exec tiny-syncer-0-x -c shard "
        "-- python3 -P -m atoll_syncer.edges.status_lines"
    )


def say(kubectl: Path, *lines: dict[str, Any]) -> None:
    """What the program in the pod prints from now on."""
    (kubectl / "said").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_a_pod_refuses_is_told_with_the_command(kubectl: Path) -> None:
    say(kubectl)
    (kubectl / "errors").write_text("warning\nError: pods is forbidden\n")
    (kubectl / "code").write_text("1")
    command, problem = atoll("top", "tiny").split(": ", 1)
    assert "kubectl -n team exec tiny-syncer-0-x" in command
    assert problem.startswith("Error: pods is forbidden; ")


@pytest.mark.parametrize("verb", ["top", "export"])
def test_without_kubectl_it_is_named(
    kubectl: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(kubectl))
    more = ["--out", "x"] if verb == "export" else []
    assert atoll(verb, "tiny", *more).startswith("kubectl: is not on the PATH")


def test_shards_of_a_folder_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs."""
    (tmp_path / "run.json").write_text("{}")
    processes = [
        {"role": "shard", "name": "shard-0", "shard": 0, "endpoint": "127.0.0.1:7"},
        {"role": "learner", "slot": "us-east-0", "endpoint": ""},
    ]
    (tmp_path / "processes.json").write_text(json.dumps(processes))
    assert "nothing runs in it now; see atoll status" in atoll("top", tmp_path)
    asked: list[list[str]] = []

    def ask(links: local_shards.ShardLinks) -> list[pb.StatusReply]:
        assert links._folder == "", "it has no credentials of its own"
        asked.append([*links._endpoints])
        return [reply()]

    monkeypatch.setattr(local_shards.ShardLinks, "ask", ask)
    house = ShownMachine(name="house", region="us-east", up_bytes=2 * 10**9, down_bytes=10**9)
    (tmp_path / MACHINES_FILE).write_text(to_json(MachinesFile(machines=(house,))))

    with (tmp_path / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = atoll("top", tmp_path).strip()
    assert asked == [["127.0.0.1:7"]]
    assert "house    us-east" in shown
    assert "NODE" not in shown
    assert "us-east-0  Training" in shown
    monkeypatch.undo()
    assert local_shards.ShardLinks(["127.0.0.1:1"]).ask() == [None]  # it costs its row alone
