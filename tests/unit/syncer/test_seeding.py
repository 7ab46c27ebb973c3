"""Learners begin a run together, as far as they are there (rule 1)."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import Expected
from atoll_protos.run import Region
from atoll_syncer.model.effects import PublishHead, Tape
from atoll_syncer.model.history import History
from atoll_syncer.rules import seeding
from atoll_syncer.rules.status import status
from unit.syncer.shard_side import FRAGMENTS, RUN, Side, begun, layout_of, run_file, side

TWO = Expected(regions=(Region(name="a", learners=2),), start_seconds=20)


def waiting(expected: Expected = TWO) -> tuple[Side, int]:
    """Version 0 is durable, and one of the learners is there."""
    one = side(expected=expected).start()
    first = one.join("a-0")
    one.model(first)
    one.seed(first)
    return one, first


def given(one: Side) -> set[int]:
    """Sessions that have got version 0 since the last look."""
    return {each.session for each in one.take(PublishHead)}


def missing(one: Side) -> list[object]:
    """Of the line on the tape that says that the run begins."""
    records = [each.record for each in one.take(Tape)]
    return [record["missing"] for record in records if record["event"] == "start"]


def test_nobody_begins_before_all_learners_of_the_job_are_there() -> None:
    one, first = waiting()
    one.wait(19.0)
    assert given(one) == set()
    second = one.join("a-1")
    assert given(one) == {first, second}
    assert missing(one) == [[]]


def test_one_that_does_not_come_stops_nobody_and_is_named() -> None:
    one, first = waiting()
    one.wait(20.25)
    assert given(one) == {first}
    assert missing(one) == [["a-1"]]
    late = one.join("a-1")
    assert given(one) == {late}


def test_the_status_says_who_is_waited_for_and_how_long() -> None:
    one, _ = waiting()
    one.wait(5.0)
    said = status(one.state, one.now)
    assert said.state == pb.SHARD_SEEDING
    assert said.reason == "waits for a-1 to begin together, at most 15 s more"
    one.join("a-1")
    assert status(one.state, one.now).state == pb.SHARD_SERVING


def test_one_that_was_there_and_left_is_waited_for_again() -> None:
    one = side(expected=TWO).start()
    first = one.join("a-0")
    second = one.join("a-1")
    one.leave(second)
    one.model(first)
    one.seed(first)
    assert given(one) == set()
    second = one.join("a-1")
    assert given(one) == {first, second}


def test_a_job_that_is_suspended_before_its_start_waits_for_all_once_more() -> None:
    one, first = waiting()
    one.join("", observer=True)
    one.leave(first)
    one.wait(3600.0)
    again = one.join("a-0")
    one.wait(19.0)
    assert given(one).isdisjoint({again})
    one.wait(1.25)
    assert again in given(one)
    assert missing(one) == [["a-1"]]


def test_one_that_is_taken_out_of_the_job_is_waited_for_no_longer() -> None:
    one, first = waiting(Expected(regions=TWO.regions, start_seconds=3600))
    assert given(one) == set()
    fewer = Expected(regions=(Region(name="a", learners=1),), start_seconds=3600)
    one.feed(one.shard.expected_heard(fewer, one.now))
    assert given(one) == {first}
    assert missing(one) == [[]]


def test_one_that_is_asked_for_a_seed_and_sends_nothing_is_given_up_rule_1() -> None:
    one = side().start()
    silent, other = one.join("a-0"), one.join("a-1")
    one.model(silent)
    one.wait(20.0)
    one.send(silent, pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32))
    one.wait(30.0)
    assert one.ends() == [], "a slice has come meanwhile"
    one.wait(0.75)
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER]
    again = one.join("a-0")
    assert [session for session, _ in one.sent("send_seed")] == [silent, other]
    one.wait(29.0)
    assert one.ends() == []
    one.wait(1.75)
    assert [session for session, _ in one.sent("send_seed")] == [again]
    one.seed(again)
    assert status(one.state, one.now).state == pb.SHARD_SERVING


def test_a_seed_that_is_on_its_way_or_is_being_stored_is_waited_for_rule_1() -> None:
    one = side().start()
    session = one.join("a-0")
    one.model(session)
    heads = [pb.Transfer(seed=pb.Seed(slice=n), encoding=pb.F32) for n in range(FRAGMENTS)]
    one.feed(one.shard.transfer_started(session, heads[0], one.now))
    one.wait(60.0)
    one.feed(one.shard.transfer_verified(session, heads[0], one.now))
    one.feed(one.shard.transfer_started(session, heads[1], one.now))
    one.effects += one.shard.transfer_verified(session, heads[1], one.now)  # and is not performed
    one.wait(60.0)
    assert one.ends() == []


LONG = Expected(
    regions=(Region(name="a", learners=2), Region(name="b", learners=1)), start_seconds=3600
)


def test_one_that_has_another_model_is_not_waited_for_but_named() -> None:
    one, first = waiting(Expected(regions=TWO.regions, start_seconds=3600))
    one.join("a-1", layout_digest="of another model")
    assert [each.code for each in one.ends()] == [pb.OTHER_LAYOUT]
    assert given(one) == {first}
    assert missing(one) == [["a-1"]]


@pytest.mark.parametrize("late", [False, True])
def test_one_with_another_model_gets_the_runs_and_hears_who_brought_it_rule_1(late: bool) -> None:
    one = side(expected=LONG).start()
    first = one.join("a-0")
    one.model(first)
    if not late:
        one.join("a-1", layout_digest="of another model")
    one.seed(first)
    assert one.state.history == History.of(one.entries)
    if late:
        one.leave(first)  # who brought it need not be there
        one.join("a-1", layout_digest="of another model")
    (end,) = one.ends()
    assert end.code == pb.OTHER_LAYOUT
    assert end.model == layout_of(one.job.shards).to_model()
    assert end.reason == "another model than this run's, which a-0 brought"
    assert end.remedy == "give every learner the same model, or start another job"


def test_one_whose_model_turns_out_to_be_another_one_is_not_waited_for() -> None:
    one = side(expected=LONG).start()
    first, _, third = one.join("a-0"), one.join("a-1", layout_digest="other"), one.join("b-0")
    one.model(first)
    one.seed(first)
    assert [each.code for each in one.ends()] == [pb.OTHER_LAYOUT]
    one.wait(0.25)
    assert given(one) == {first, third}


def test_a_slot_is_waited_for_again_once_another_learner_has_dialled_in_it() -> None:
    one, _ = waiting(LONG)
    one.join("a-1", run_hash="of another manifest")
    assert seeding.missing(one.state) == ["b-0"]
    one.leave(one.join("a-1"))
    assert seeding.missing(one.state) == ["a-1", "b-0"]


@pytest.mark.parametrize("fields", [{"protocol": 1}, {"slot": "a-1", "run": "former"}])
def test_one_whose_next_start_may_be_taken_is_waited_for(fields: dict[str, object]) -> None:
    one, _ = waiting(TWO)
    one.join(**{"slot": "a-1", **fields})  # type: ignore[arg-type]
    assert len(one.ends()) == 1
    assert seeding.missing(one.state) == ["a-1"]


def test_an_observer_with_another_model_says_nothing_of_a_learner() -> None:
    one, _ = waiting(TWO)
    one.join("a-1", observer=True, layout_digest="of another model")
    assert [each.code for each in one.ends()] == [pb.OTHER_LAYOUT]
    assert seeding.missing(one.state) == ["a-1"]


def test_an_observer_waits_for_nobody() -> None:
    one, _ = waiting()
    observer = one.join("", observer=True)
    assert given(one) == {observer}


def test_where_nobody_is_to_wait_the_first_begins_at_once() -> None:
    one, first = waiting(Expected(regions=TWO.regions, start_seconds=0))
    one.wait(0.25)
    assert given(one) == {first}


@pytest.mark.parametrize("shard", [0, 1])
def test_a_shard_that_knows_of_no_learner_or_is_not_the_registrar_keeps_nothing_back(
    shard: int,
) -> None:
    one = side(shard=shard, job=run_file(shards=2), expected=Expected() if shard == 0 else TWO)
    assert not one.state.seed.kept_back


def test_learners_that_train_already_are_not_stopped_by_a_registrar_that_starts_again() -> None:
    before, _ = begun("a-0")
    held = list(before.state.heads())
    again = side(entries=tuple(before.entries), expected=TWO).start()
    first = again.join("a-0", instance="a-0-process", run=RUN, incarnation=1, held=held)
    assert given(again) == set()  # it has what there is
    again.report(first, 3)
    late = again.join("a-1")
    again.wait(0.25)
    assert given(again) == {late}
