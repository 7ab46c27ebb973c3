"""What a session holds by its whole name, and what an older one still says (rules 5, 17, 35)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.length import Length
from atoll_syncer.model.effects import PublishHead
from unit.syncer.shard_side import Side, begun, step_all, version


def committed() -> tuple[Side, list[int]]:
    """Slice 1 has version 1."""
    one, sessions = begun("a-0", "a-1", grace=False)
    step_all(one, sessions, range(1, 6))
    one.offer(sessions[0], 1, 5)
    assert one.state.history.heads[1].number == 1
    one.effects.clear()
    return one, sessions


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, 1),
        ({"name": "f" * 64}, None),  # another value of this number, of a log that was lost
        ({"run": "run-old"}, None),
        ({"number": 0}, None),
    ],
)
def test_a_joiner_holds_a_head_only_by_its_whole_name_rule_17(
    changes: dict[str, Any], held: int | None
) -> None:
    """[By its number alone it would get a difference to a value that it does not have.]"""
    one, _ = committed()
    number = changes.pop("number", 1)
    name = {"fragment": 1, "number": number, **changes}
    joined = one.join("b-0", held=[version(**name)])
    assert one.shard.held_by(joined, 1) == held
    sent = {effect.slice for effect in one.take(PublishHead) if effect.session == joined}
    assert sent == ({0} if held == 1 else {0, 1})


def test_a_reported_version_is_held_only_by_its_digest_too_rule_17() -> None:
    one, sessions = committed()
    head = one.state.history.heads[1]
    for digest, held in ((head.digest, 1), ("f" * 64, None)):
        progress = pb.SliceProgress(slice=1, held=1, digest=digest[:16])
        one.report(sessions[1], 6, slices=[progress])
        assert one.shard.held_by(sessions[1], 1) == held


def test_a_report_of_a_replaced_session_does_not_count_rule_5() -> None:
    one, sessions = begun("a-0")
    one.lingering = True  # its streams are still open
    again = one.join("a-0", incarnation=1)
    one.report(again, 1)
    tick, tokens = one.state.clock.tick, one.state.sessions.tokens
    one.report(sessions[0], 50, tokens=500)
    assert (one.state.clock.tick, one.state.sessions.tokens) == (tick, tokens)
    assert one.state.sessions.slots["a-0"].report.t_m == 1


def test_the_tokens_of_learners_that_are_gone_count_too_rule_35() -> None:
    one, sessions = begun("a-0", "a-1")
    for session in sessions:
        one.report(session, 1, tokens=100)
    assert one.state.sessions.tokens == 200
    one.leave(sessions[1])
    assert one.state.sessions.tokens == 200
    again = one.join("a-1", instance="new")
    one.report(again, 1, tokens=30)
    assert one.state.sessions.tokens == 230


def test_a_job_s_length_in_tokens_counts_those_of_the_dead_rule_35() -> None:
    one, sessions = begun("a-0", "a-1")
    one.state.ending.length = Length(tokens=200)
    one.report(sessions[1], 1, tokens=100)
    one.leave(sessions[1])
    one.report(sessions[0], 1, tokens=99)
    assert not one.state.over
    one.report(sessions[0], 2, tokens=100)
    assert one.state.over
