"""Whose bytes and tokens the tape tells of: by region, machine and learner."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.duties.recording import LinkEnd, Recording
from atoll_syncer.model.effects import TapeLine
from unit.syncer.shard_side import begun

Line = dict[str, Any]


def recording(lines: list[Line]) -> Recording:
    """Of a shard with a learner, session 1, and an observer, session 2."""
    sessions = {1: SimpleNamespace(slot="a-0"), 2: SimpleNamespace(slot="")}
    state: Any = SimpleNamespace(
        run_file=SimpleNamespace(regions=[SimpleNamespace(name="a")]),
        sessions=SimpleNamespace(open=sessions),
        history=SimpleNamespace(run="run"),
    )
    tape = SimpleNamespace(write=lambda _, line: lines.append(line))
    machine: Any = SimpleNamespace(metrics=ShardMetrics(CollectorRegistry()), tape=tape)
    background: Any = None
    return Recording(state, machine, background)


def test_bytes_are_counted_by_region_and_by_machine() -> None:
    lines: list[Line] = []
    one = recording(lines)
    one.write({})
    house, plain = one.end_of(1, "house"), one.end_of(1, "")
    assert (house, plain) == (LinkEnd("a", "house"), LinkEnd("a"))
    assert one.end_of(2, "") == one.end_of(9, "house") == LinkEnd()
    far = one.end_of(1, "far")
    one.received(1, far)
    one.received(5, house)
    one.sent(7, house)
    one.sent(2, plain)
    one.sent(9)
    one.write({"event": "x"})
    assert one.links == {LinkEnd(): (0, 9), plain: (0, 2), far: (1, 0), house: (5, 7)}
    assert lines == [
        {"bytes_up": 0, "bytes_down": 0, "links": {}},
        {
            "event": "x",
            "bytes_up": 6,
            "bytes_down": 18,
            "links": {"": (0, 9), "a": (6, 9)},
            "machines": {"a": {"far": (1, 0), "house": (5, 7)}},
        },
    ]


def test_a_commit_says_what_each_learner_has_trained_and_how_it_works() -> None:
    one, sessions = begun("a-0", "a-1", steps=200)
    for t_m in range(1, 12):
        one.now += 1.0
        one.report(sessions[0], t_m, tokens=10 * t_m, step_seconds=0.5, busy_share=0.75)
        one.report(sessions[1], t_m, tokens=0)
        for session, call in one.sent("call"):
            one.offer(session, call.slice, t_m)
    first = next(x.record for x in one.take(TapeLine) if x.record["event"] == "commit")
    assert {slot: each["busy_share"] for slot, each in first["learners"].items()} == {"a-0": 0.75}
    assert first["learners"]["a-0"]["step_seconds"] == 0.5
    assert first["learners"]["a-0"]["tokens"] == first["tokens"] > 0
