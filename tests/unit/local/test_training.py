"""One pass of `atoll run` over its processes, and the last one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local import progress
from atoll_operator.local.run import Training
from unit.local.test_progress import NOW, job, reply


class Shards:
    """Two shards of a complete job, each asked once a pass; the evaluator speaks in between."""

    def __init__(self) -> None:
        self.asked = 0

    def poll(self, now: float, ends: progress.Ends = progress.NO_ENDS) -> progress.Snapshot:
        self.asked += 1
        replies = [reply("Complete", tick=200), reply("Complete", tick=200)]
        if self.asked > 1:
            replies[0].evaluation.CopyFrom(pb.Evaluation(tick=200, loss=1.5, tokens=10))
        found = progress.status(job(), replies, NOW, ends)
        return progress.Snapshot(job=job(), replies=replies, status=found, bytes_per_second=None)


class Processes:
    """Learners and evaluator, which have ended by the time that they are looked at."""

    children: tuple[Any, ...] = ()

    def supervise(self, now: float, *, final: bool, tick: int) -> None:
        pass

    def in_roles(self, *roles: str) -> list[Any]:
        return []


def test_the_last_status_has_what_was_said_until_the_last_process_had_left(tmp_path: Path) -> None:
    shards: Any = Shards()
    training = Training(
        needed=0,
        out=tmp_path,
        supervisor=Processes(),  # type: ignore[arg-type]
        poller=shards,
        view=SimpleNamespace(show=lambda seen, now: None),
        status=progress.status(job(), [None, None], NOW),
    )
    assert training.advance(1.0)
    metrics = json.loads((tmp_path / "status.json").read_text())["progress"]["metrics"]
    assert {"name": "outer_loss", "value": "1.5000"} in metrics
