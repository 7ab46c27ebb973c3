"""What a learner or a shard says in words comes out as one printable line."""

from typing import Any, Final

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.rules.status import status
from unit.syncer.shard_side import begun, side
from unit.worker.fake_driver import learner_side

FORGED: Final = "it fails\nmachine eu has entered \x1b]0;owned\x07" + "x" * 5000


@pytest.mark.parametrize("field", ["instance", "uid", "layout_digest"])
def test_a_name_that_cannot_be_printed_ends_a_join_rule_38(field: str) -> None:
    one = side().start()
    words: Any = {field: "two\nlines"}
    one.join("a-0", **words)
    (end,) = one.ends()
    assert "cannot be printed" in end.reason


def test_a_table_of_tensors_with_a_name_that_cannot_be_printed_ends_its_session_rule_38() -> None:
    for field in ("name", "dtype", "merge"):
        one = side().start()
        session = one.join("a-0")
        words: Any = {field: "\x1b[2J"}
        table = pb.Model(tensors=[pb.Tensor(**words)])
        one.feed(one.shard.message(session, pb.ToShard(model=table), one.now))
        (end,) = one.ends()
        assert "cannot be printed" in end.reason


def test_what_a_learner_says_of_itself_is_one_printable_line_of_status() -> None:
    one, (session, other) = begun("a-0", "a-1")
    one.report(session, 1, trouble=FORGED)
    one.feed(one.shard.message(other, pb.ToShard(leave=pb.Leave(reason=FORGED)), one.now))
    one.feed(one.shard.session_closed(other, one.now))
    trouble, reason = (
        words
        for slot in status(one.state, one.now).slots
        for words in (slot.trouble, slot.reason)
        if words
    )
    for words in (trouble, reason):
        assert words.startswith("it fails machine")
        assert words.isprintable()
        assert len(words) < 1000


@pytest.mark.parametrize("retry", [True, False])
def test_a_shards_reason_is_one_printable_line_for_the_learner(retry: bool) -> None:
    learner = learner_side().begin()
    learner.receive(0, end=pb.End(code=pb.NOT_READY, reason=FORGED, remedy=FORGED, retry=retry))
    words = learner.exchange.state.shards[0].end_reason
    assert words.startswith(r"it fails\nmachine")
    assert words.isprintable()
    assert len(words) <= 1000
