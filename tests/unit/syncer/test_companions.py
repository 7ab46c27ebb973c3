"""What an export needs beside the values: asked for, stored in parts, awaited (rule 36)."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import companion as contract
from atoll_protos.exits import ExitCode, exit_code_of
from atoll_syncer.model import log
from atoll_syncer.model.effects import Accept, EndSession, PublishCompanion, WriteIndex
from atoll_syncer.rules import companions
from unit.syncer.shard_side import KEY, RUN, Side, run_file, side

TWO_PARTS = contract.PART_BYTES + 5


def seeded(*slots: str) -> tuple[Side, list[int]]:
    one = side().start()
    sessions = [one.join(slot, has_companion=True) for slot in slots]
    one.model(sessions[0])
    one.seed(sessions[0])
    return one, sessions


def asked(one: Side, *, changed: bool = False) -> list[int]:
    return [to for to, message in one.sent("send_companion") if message.changed == changed]


def part(number: int = 0, total: int = TWO_PARTS, *, changed: bool = False) -> pb.Transfer:
    head = pb.Companion(changed=changed, part=number, companion_bytes=total)
    return pb.Transfer(companion=head, byte_count=contract.part_bytes(total, number))


def send(one: Side, session: int, transfer: pb.Transfer, name: str = "object") -> None:
    """A part comes, and is stored as the driver does it."""
    one.feed(one.shard.transfer_started(session, transfer, one.now))
    stored = name if one.shard.part_wanted(session, transfer.companion) else ""
    one.feed(one.shard.part_stored(session, transfer, stored, one.now))


def at_its_end(one: Side) -> Side:
    one.append(log.Ended(tick=20))
    one.feed(one.shard.part_written("part-0", "digest"))
    return one


def test_one_learner_is_asked_once_the_values_have_begun() -> None:
    one = side().start()
    sessions = [one.join(slot, has_companion=True) for slot in ("a-0", "a-1")]
    one.wait(1.0)
    assert asked(one) == []
    one.model(sessions[0])
    one.seed(sessions[0])
    assert asked(one) == [sessions[0]]
    one.wait(5.0)
    assert asked(one) == []


def test_a_learner_without_one_and_another_shard_are_never_part_of_it() -> None:
    one = side().start()
    session = one.join("a-0")
    one.model(session)
    one.seed(session)
    one.wait(1.0)
    assert asked(one) == []


def test_it_counts_once_all_parts_are_stored_and_the_entry_names_them_in_order() -> None:
    one, (session, _) = seeded("a-0", "a-1")
    send(one, session, part(0), "first")
    assert not one.state.history.companion
    send(one, session, part(1), "second")
    assert one.state.history.companion == ("first", "second")
    assert one.state.history.live_objects() >= {"first", "second"}
    assert one.ends() == []


def test_the_next_learner_is_asked_when_the_session_closes_half_way() -> None:
    one, (first, second) = seeded("a-0", "a-1")
    asked(one)
    send(one, first, part(0))
    one.leave(first)
    one.wait(0.5)
    assert asked(one) == [second]
    send(one, second, part(0), "x")
    send(one, second, part(1), "y")
    assert one.state.history.companion == ("x", "y")


def test_a_registrar_that_restarts_between_seed_and_companion_asks_again() -> None:
    one, (session,) = seeded("a-0")
    send(one, session, part(0))
    again = side(entries=tuple(one.entries)).start()
    session = again.join("a-0", incarnation=1, run=one.state.history.run, has_companion=True)
    again.wait(0.5)
    assert asked(again) == [session]


def test_a_registrar_that_restarts_after_it_has_the_companion_and_asks_nobody() -> None:
    one, (session,) = seeded("a-0")
    send(one, session, part(0, 5), "whole")
    again = side(entries=tuple(one.entries)).start()
    again.join("a-0", incarnation=1, run=one.state.history.run, has_companion=True)
    again.wait(1.0)
    assert asked(again) == []
    assert again.state.history.companion == ("whole",)


@pytest.mark.parametrize(
    "wrong",
    [
        part(1),
        part(0, contract.BYTES_MAX + 1),
        part(0, 0),
        pb.Transfer(companion=pb.Companion(part=0, companion_bytes=TWO_PARTS), byte_count=7),
        part(0, 5, changed=True),
    ],
    ids=["not the next", "too large", "empty", "another size", "not asked at the end"],
)
def test_a_part_whose_size_or_place_is_wrong_ends_the_session_before_it_comes(
    wrong: pb.Transfer,
) -> None:
    one, (session, other) = seeded("a-0", "a-1")
    effects = one.shard.transfer_started(session, wrong, one.now)
    assert [each.session for each in effects if isinstance(each, EndSession)] == [session]
    assert not any(isinstance(each, Accept) for each in effects)
    one.feed(effects)
    assert other in one.state.sessions.open


def test_who_was_not_asked_may_not_send_one() -> None:
    one, (_, other) = seeded("a-0", "a-1")
    (end,) = one.shard.transfer_started(other, part(0), one.now)
    assert isinstance(end, EndSession)
    assert "not asked" in end.end.reason


def test_at_the_end_all_are_asked_for_what_has_changed_and_the_first_one_counts() -> None:
    one, (first, second) = seeded("a-0", "a-1")
    send(one, first, part(0, 5))
    at_its_end(one)
    assert asked(one, changed=True) == [first, second]
    one.take(WriteIndex)
    send(one, second, part(0, 7, changed=True), "second's")
    assert one.state.history.companion_changed == ("second's",)
    assert [to for to, _ in one.sent("companion_taken")] == [first, second]
    send(one, first, part(0, 9, changed=True), "first's")
    assert one.state.history.companion_changed == ("second's",)
    assert [to for to, _ in one.sent("companion_taken")] == [first]
    assert one.ends() == []


def test_nobody_may_leave_before_what_has_changed_is_durable() -> None:
    one, (first, second) = seeded("a-0", "a-1")
    at_its_end(one)
    one.durable = False
    send(one, first, part(0, 7, changed=True))
    send(one, second, part(0, 7, changed=True))
    assert one.sent("companion_taken") == []
    one.flush()
    assert [to for to, _ in one.sent("companion_taken")] == [first, second]


def test_the_export_waits_for_the_companion_while_a_learner_is_there() -> None:
    one, (session,) = seeded("a-0")
    at_its_end(one)
    one.wait(5.0)
    assert one.take(WriteIndex) == []
    send(one, session, part(0, 5))
    send(one, session, part(0, 7, changed=True))
    assert len(one.take(WriteIndex)) == 1


def test_the_export_does_not_wait_for_learners_that_are_gone() -> None:
    one, (session,) = seeded("a-0")
    at_its_end(one)
    one.leave(session)
    one.wait(0.5)
    assert len(one.take(WriteIndex)) == 1


def test_the_patience_of_the_export_ends() -> None:
    one, _ = seeded("a-0")
    at_its_end(one)
    one.wait(companions.EXPORT_WAITS_SECONDS - 2.0)
    assert one.take(WriteIndex) == []
    one.wait(3.0)
    assert len(one.take(WriteIndex)) == 1


def test_an_observer_without_a_model_gets_the_model_and_the_companion() -> None:
    one, (session,) = seeded("a-0")
    send(one, session, part(0, 5), "whole")
    one.effects.clear()
    observer = one.join("", "tool", layout_digest="", observer=True, has_companion=True)
    ((_, welcome),) = one.sent("welcome")
    assert welcome.model.layout_digest == one.state.history.layout_digest
    assert welcome.companion_parts == 1
    assert one.take(PublishCompanion) == [PublishCompanion(observer, ("whole",), False)]


def test_a_learner_whose_frozen_part_differs_is_refused_for_good_with_one_sentence() -> None:
    one = side().start()
    first = one.join("a-0", frozen_digest="one")
    early = one.join("a-1", frozen_digest="two")
    one.model(first)
    one.seed(first)
    assert early not in one.state.sessions.open, "it had joined before anybody knew better"
    one.effects.clear()
    for slot, digest, refused in (("b-0", "two", True), ("b-1", "one", False), ("b-2", "", False)):
        one.join(slot, frozen_digest=digest)
        assert [end.code for end in one.ends()] == ([pb.OTHER_FROZEN] if refused else [])
    assert exit_code_of(pb.OTHER_FROZEN) is ExitCode.OTHER_JOB
    assert one.state.history.frozen_digest == "one"


def test_only_the_registrar_compares_frozen_parts() -> None:
    """Two shards may have asked two learners for their seeds; one of the two must stay."""
    one = side(shard=1, job=run_file(shards=2), entries=(log.RunStarted(run=RUN),)).start()
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY), one.now))
    sessions = [one.join(f"a-{n}", incarnation=1, run=RUN, frozen_digest=str(n)) for n in (0, 1)]
    one.model(sessions[0])
    one.seed(sessions[0])
    assert one.state.history.heads
    assert sessions == sorted(one.state.sessions.open)
