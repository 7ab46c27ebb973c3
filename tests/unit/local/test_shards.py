"""What is remembered from one look at the shards to the next."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.reasons import STALLED_SECONDS
from atoll_operator.local.shards import Poller
from unit.local.test_progress import job, reply, said


def test_a_step_that_has_not_moved_since_a_former_look_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poller = Poller(job(), ())
    ticks: list[pb.StatusReply | None] = []
    monkeypatch.setattr(poller, "_replies", lambda: ticks)

    def progressing(now: float, *seen: int | None) -> str:
        ticks[:] = [None if tick is None else reply(tick=tick) for tick in seen]
        return said(poller.poll(now).status.to_object())["Progressing"]

    late = STALLED_SECONDS + 1
    assert progressing(0.0, 40, 50) == "True/Training"
    assert progressing(late, 40, 51) == "False/Stalled"  # the lowest of all shards counts
    assert progressing(late, 41, 51) == "True/Training"
    assert progressing(late + 1, 41, None) == "False/WaitingForSyncer"
    assert progressing(2 * late + 1, 41, 52) == "False/Stalled"  # nothing was seen in between
