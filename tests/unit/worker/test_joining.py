"""A learner joins, reconnects, is refused (docs/protocol.md, rules 1-5, 20, 28)."""

from dataclasses import replace

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS, ExitCode
from atoll_protos.layout import Layout, TensorSpec
from atoll_worker.link.messages import Adopt, Fail, Start
from atoll_worker.rules.effects import Dial, HangUp, Record, SendHeld, SendOffer, SendSeed
from atoll_worker.rules.joining import backoff_seconds, difference
from unit.worker.learner_side import RUN, learner_side


def test_the_registrar_is_dialled_first_and_the_others_with_its_incarnation_rule_4() -> None:
    side = learner_side(shards=3)
    side.feed(side.exchange.start(side.now))
    assert side.take(Dial) == [Dial(0)]
    side.welcome(0, incarnation=7, proof="given")
    assert side.take(Dial) == [Dial(1), Dial(2)]
    ((shard, join),) = side.messages("join")
    assert (shard, join.incarnation) == (0, 0)
    side.welcome(2)
    ((shard, join),) = side.messages("join")
    assert (shard, join.incarnation, join.proof) == (2, 7, "given")
    side.lose(0)
    side.welcome(0, incarnation=7, proof="by a registrar that has lost its log")
    side.seen.clear()
    side.welcome(1, incarnation=7)
    ((_, join),) = side.messages("join")
    assert join.proof == "by a registrar that has lost its log"


def test_a_join_says_who_asks_and_what_it_holds_and_has_seen_rule_3() -> None:
    side = learner_side().begin()
    side.step()
    side.receive(0, tick=pb.Tick(tick=9))
    side.lose(1)
    side.seen.clear()
    side.feed(side.exchange.connected(1, side.now))
    ((_, join),) = side.messages("join")
    assert (join.slot, join.uid, join.instance, join.incarnation) == ("here-0", "uid", "uid-1", 3)
    assert join.run_hash == side.run_file.hash
    assert join.run == RUN
    assert [(each.slice, each.version) for each in join.held] == [
        (p, side.publish(1, p, 0).version.version) for p in (0, 1)
    ]
    assert (join.tick_seen, list(join.epochs_seen)) == (9, [1, 1])
    assert (join.t_m, join.cursor, join.observer) == (1, 1, False)


def test_training_starts_when_all_shards_have_welcomed_it_and_all_slices_are_there_rule_5() -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.welcome(0, tick=12, cursor=5)
    side.value(0, 0, 4)
    side.value(0, 1, 4)
    side.again()
    assert side.take(Start) == []
    side.welcome(1, tick=11, cursor=8)
    side.value(1, 0, 4)
    side.again()
    assert side.take(Start) == []
    assert [report.training for _, report in side.messages("report")][-1] is False
    side.value(1, 1, 4)
    side.again()
    assert side.take(Start) == [Start(incarnation=3, cursor=8, tick=11)]
    assert {report.training for _, report in side.messages("report")} >= {True}


def test_values_that_come_before_a_welcome_do_not_start_the_training_rule_5() -> None:
    """The bulk stream is not ordered against the control stream."""
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.welcome(0, cursor=8)
    for shard, fragment in side.exchange.slices:
        side.value(shard, fragment, 4)
    side.again()
    assert side.take(Start) == []
    side.welcome(1, tick=2, cursor=5)
    assert side.take(Start) == [Start(incarnation=3, cursor=8, tick=0)]  # rule 28: the largest


@pytest.mark.parametrize(
    ("first", "second", "start"),
    [
        ((5, b"at 5"), (8, b"at 8"), (8, b"at 8")),
        ((8, b"at 8"), (5, b"at 5"), (8, b"at 8")),
        ((8, None), (5, b"at 5"), (8, None)),
        ((5, b"at 5"), (8, None), (8, None)),
        ((8, None), (8, b"at 8"), (8, b"at 8")),  # the first has lost its store
        ((8, b"at 8"), (8, None), (8, b"at 8")),
        ((0, None), (0, None), (0, None)),
        ((3, b""), (0, None), (3, b"")),
    ],
)
def test_a_learner_starts_with_the_data_state_of_its_cursor_or_none_rule_28(
    first: tuple[int, bytes | None],
    second: tuple[int, bytes | None],
    start: tuple[int, bytes | None],
) -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    for shard, (cursor, data_state) in enumerate((first, second)):
        side.welcome(shard, cursor=cursor, data_state=data_state)
        for fragment in range(2):
            side.value(shard, fragment, 4)
    side.again()
    (command,) = side.take(Start)
    assert (command.cursor, command.data_state) == start


def test_only_a_learner_that_starts_asks_for_its_data_state() -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.welcome(0)
    ((_, join),) = side.messages("join")
    assert join.starting
    side = learner_side().begin()
    side.lose(1)
    side.feed(side.exchange.connected(1, side.now))
    ((_, join),) = side.messages("join")
    assert not join.starting


def test_a_shard_that_was_lost_after_its_welcome_does_not_hold_up_the_start() -> None:
    side = learner_side()
    side.join()
    for shard, fragment in side.exchange.slices:
        side.value(shard, fragment, 0)
    side.lose(1)
    side.again()
    assert len(side.take(Start)) == 1


def test_a_later_welcome_does_not_move_the_cursor_of_one_that_trains_rule_28() -> None:
    side = learner_side().begin()
    side.step()
    side.lose(1)
    side.welcome(1, cursor=99)
    side.seen.clear()
    side.feed(side.exchange.tick_time(side.now + 2.0))
    assert {report.cursor for _, report in side.messages("report")} == {1}


def test_a_learner_that_is_asked_sends_the_model_and_its_seed_rule_1() -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.welcome(0, needs_model=True)
    ((shard, model),) = side.messages("model")
    assert (shard, len(model.tensors)) == (0, 4)
    side.receive(0, send_seed=pb.SendSeed())
    assert side.take(SendSeed) == [SendSeed(0)]
    assert side.take(Start) == []
    assert side.take(Adopt) == []  # its own seed too comes back as a Publish


def test_a_seed_is_not_taken_from_regions_that_hold_later_values_rule_1() -> None:
    side = learner_side().begin()
    side.step()
    side.call(0, 0, base=0)
    side.seen.clear()
    side.receive(0, send_seed=pb.SendSeed())
    assert side.take(SendSeed) == []
    assert [fail.exit_code for fail in side.take(Fail)] == [ExitCode.TRY_AGAIN]


def test_another_run_ends_this_process_so_that_a_fresh_one_starts_rule_2() -> None:
    side = learner_side().begin()
    side.lose(0)
    side.welcome(0, run="run-2")
    (fail,) = side.take(Fail)
    assert fail.exit_code == ExitCode.TRY_AGAIN
    assert "run-1 has ended" in fail.reason
    side.lose(1)
    side.feed(side.exchange.tick_time(side.now + 60.0))
    assert side.take(Dial) == []


def test_an_older_reign_than_one_already_seen_is_left_rule_20() -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.welcome(0, epoch=5)
    side.lose(0)
    side.seen.clear()
    side.welcome(0, epoch=4)
    assert [each.shard for each in side.take(HangUp)] == [0]
    side.receive(0, send_seed=pb.SendSeed())
    assert side.take(SendSeed) == []
    side.lose(0)
    side.welcome(0, epoch=6)
    assert side.take(HangUp) == []


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (pb.SUPERSEDED, ExitCode.SUPERSEDED),
        (pb.OTHER_RUN_HASH, ExitCode.OTHER_JOB),
        (pb.OTHER_LAYOUT, ExitCode.OTHER_JOB),
        (pb.OTHER_PROTOCOL, ExitCode.TRY_AGAIN),
        (pb.UNKNOWN_SLOT, ExitCode.BAD_INPUT),
        (pb.TOO_MANY_LANES, ExitCode.BAD_INPUT),
        (pb.BAD_MESSAGE, ExitCode.TRY_AGAIN),
    ],
)
@pytest.mark.parametrize("word", ["end", "refuse"])
def test_a_permanent_refusal_ends_the_process_with_its_code_and_the_remedy_rule_3(
    code: pb.Code, exit_code: ExitCode, word: str
) -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.feed(side.exchange.connected(0, side.now))
    if word == "end":
        side.end(0, code)
    else:
        side.receive(0, end=pb.End(code=code, reason="because", remedy="do this"))
    (fail,) = side.take(Fail)
    assert fail.exit_code == exit_code
    assert fail.reason == "shard 0: because; remedy: do this"
    side.end(0, code)
    assert side.take(Fail) == []  # said once


A_MATRIX = TensorSpec(name="a.weight", shape=(24, 8), dtype="float32", merge="rda")
A_BIAS = TensorSpec(name="b", shape=(), dtype="float32", merge="mean")


@pytest.mark.parametrize(
    ("own", "runs", "said"),
    [
        (
            [A_MATRIX, A_BIAS],
            [replace(A_MATRIX, shape=(16, 8)), A_BIAS],
            ": a.weight is float32 [24, 8], in the run float32 [16, 8]",
        ),
        (
            [replace(A_MATRIX, dtype="bfloat16")],
            [A_MATRIX, A_BIAS],
            ": a.weight is bfloat16 [24, 8], in the run float32 [24, 8], and 1 more differ",
        ),
        ([A_MATRIX], [A_MATRIX, A_BIAS], ": b is not there, in the run float32 []"),
        ([A_MATRIX, A_BIAS], [A_MATRIX], ": b is float32 [], in the run none"),
        (
            [A_MATRIX],
            [replace(A_MATRIX, merge="average")],
            ": a.weight is merged by rda, in the run merged by average",
        ),
        ([A_MATRIX], [A_MATRIX], ""),
    ],
)
def test_the_tensors_by_which_models_differ_are_named(
    own: list[TensorSpec], runs: list[TensorSpec], said: str
) -> None:
    assert difference(own, Layout(tuple(runs), 1, 1, ()).to_model().tensors) == said


def test_one_with_another_model_is_told_by_which_tensor_rule_1() -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.feed(side.exchange.connected(0, side.now))
    model = side.exchange._state.layout.to_model()
    first = model.tensors[0]
    its = list(first.shape)
    first.shape[0] += 1
    runs = list(first.shape)
    end = pb.End(code=pb.OTHER_LAYOUT, reason="another model", remedy="do this", model=model)
    side.receive(0, end=end)
    (fail,) = side.take(Fail)
    assert fail.exit_code == ExitCode.OTHER_JOB
    form = f"{first.name} is float32 {its}, in the run float32 {runs}"
    assert fail.reason == f"shard 0: another model: {form}; remedy: do this"


@pytest.mark.parametrize("code", [pb.SLOT_HELD, pb.NOT_READY])
def test_a_refusal_that_may_pass_is_tried_again_after_a_back_off(code: pb.Code) -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.feed(side.exchange.connected(0, side.now))
    side.take(Dial)
    side.end(0, code, retry=True)
    assert side.take(Fail) == []
    side.lose(0)
    assert side.take(Dial) == []
    side.now = side.exchange.deadline()
    side.feed(side.exchange.tick_time(side.now))
    assert 0.2 <= side.now - 100.0 <= 0.4
    assert side.take(Dial) == [Dial(0)]


def test_the_back_off_doubles_to_10_seconds_and_two_learners_differ() -> None:
    waits = [backoff_seconds("a", 0, attempt) for attempt in range(100)]
    assert all(0.2 <= wait <= 10.0 for wait in waits)
    assert max(waits[:2]) < 1.0
    assert max(waits) > 8.0
    assert backoff_seconds("a", 0, 5) != backoff_seconds("b", 0, 5)
    assert backoff_seconds("a", 0, 5) != backoff_seconds("a", 1, 5)
    assert waits[5] == backoff_seconds("a", 0, 5)  # no randomness of its own


def test_only_a_session_that_stayed_makes_the_next_dial_a_first_one() -> None:
    side = learner_side(shards=1).begin()
    for _ in range(8):  # welcomed and lost at once, again and again
        side.lose(0)
        side.welcome(0)
    side.lose(0)
    side.take(Dial)
    side.feed(side.exchange.tick_time(side.now + 0.4))
    assert side.take(Dial) == []
    side.feed(side.exchange.tick_time(side.now + 10.0))
    assert side.take(Dial) == [Dial(0)]
    side.welcome(0)
    side.now += 60.0
    side.feed(side.exchange.tick_time(side.now))
    side.lose(0)
    assert side.exchange.deadline() - side.now <= 0.4


def test_a_shard_is_not_dialled_while_that_is_already_under_way() -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.welcome(0)
    assert side.take(Dial) == [Dial(0), Dial(1)]
    side.lose(0)  # and the registrar is back before shard 1 has answered
    side.welcome(0)
    assert side.take(Dial) == []


def test_the_loss_of_one_session_stops_nothing_and_keeps_the_bases() -> None:
    side = learner_side().begin()
    side.lose(1)
    side.step()
    assert [shard for shard, _ in side.messages("report")] == [0]
    side.call(0, 0, base=0)
    side.step()
    assert len(side.take(SendOffer)) == 1
    assert side.exchange.slices[1, 0].number == 0


def test_a_shard_that_has_lost_its_store_does_not_end_the_learner_rule_22() -> None:
    side = learner_side().begin()
    side.lose(1)
    side.feed(side.exchange.connected(1, side.now))
    side.end(1, pb.STORE_LOST, retry=REFUSALS[pb.STORE_LOST].retry)  # as the shard says it
    side.lose(1)
    assert side.take(Fail) == []
    reasons = [record.fields["reason"] for record in side.take(Record)]
    assert "because" in reasons
    side.feed(side.exchange.tick_time(side.now + 10.0))
    assert side.take(Dial) == [Dial(1)]


def test_what_is_held_is_sent_by_its_own_whole_name_if_it_is_not_older_rule_22() -> None:
    side = learner_side().begin(number=4)
    held = side.publish(0, 1, 4).version
    for asked in (held, side.publish(0, 1, 3, epoch=0).version):
        side.receive(0, send_held=pb.SendHeld(version=asked))
        assert side.take(SendHeld) == [SendHeld(0, pb.Held(version=held))]
    for other in (side.publish(0, 1, 5), side.publish(0, 7, 4)):
        side.receive(0, send_held=pb.SendHeld(version=other.version))
    assert side.take(SendHeld) == []


def test_what_is_held_brings_its_lineage_along_rule_22() -> None:
    side = learner_side().begin(number=4)
    lineage = [pb.SlotMerged(slot="b-0", incarnation=2, base=4, capture=3, cursor=9)]
    publish = side.publish(0, 1, 5)
    publish.lineage.extend(lineage)
    side.feed(side.exchange.published(0, publish, side.now))
    side.step()
    side.receive(0, send_held=pb.SendHeld(version=publish.version))
    assert side.take(SendHeld) == [SendHeld(0, pb.Held(version=publish.version, lineage=lineage))]


def test_nothing_but_a_welcome_counts_before_the_welcome() -> None:
    side = learner_side()
    side.feed(side.exchange.start(side.now))
    side.feed(side.exchange.connected(0, side.now))
    side.seen.clear()
    side.receive(0, tick=pb.Tick(tick=5))
    side.receive(0, send_seed=pb.SendSeed())
    side.receive(0, final=pb.Final())
    assert side.seen == []
