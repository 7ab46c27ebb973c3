"""A learner joins, reconnects, is refused (docs/protocol.md, rules 1-5, 20, 22, 28)."""

from dataclasses import replace
from typing import TypeAlias

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import Layout, TensorSpec
from atoll_worker.link.messages import Fail, Start
from atoll_worker.rules.joining import backoff_seconds, difference
from atoll_worker.rules.learner_state import SendHeld
from unit.worker.fake_driver import RUN, learner_side

Known: TypeAlias = tuple[int, bytes | None]  # a cursor and its data state


@pytest.mark.parametrize(
    "scene",
    [
        # rule 4: the registrar is dialled first, the others with its incarnation and proof,
        # which another process of the registrar gives anew
        "dials => dial 0, no join; welcome 0 incarnation=7 proof=a => join 0 0 starting, dial 1;"
        " welcome 1 => join 1 7 a starting; lose 0; welcome 0 incarnation=7 proof=b;"
        " lose 1; welcome 1 => join 0 7 a starting, join 1 7 b starting",
        # rule 5: training starts when all shards have welcomed it and all slices are there
        "dials; welcome 0 tick=12 cursor=5; value 0/0 4; value 0/1 4; again"
        " => no start, report 0 0 5, report 0 0 5; welcome 1 tick=11 cursor=8; value 1/0 4; again"
        " => report 0 0 8, report 1 0 8, report 0 0 8, report 1 0 8; value 1/1 4; again"
        " => start 8 11, report 0 11 8 training, report 1 11 8 training",
        # values that come before a Welcome, which is in another stream, do not start it; and
        # rule 28: of two cursors the larger one counts
        "dials; welcome 0 cursor=8; value 0/0 4; value 0/1 4; value 1/0 4; value 1/1 4; again"
        " => none; welcome 1 tick=2 cursor=5 => start 8 0",
        # a shard that was lost after its Welcome does not hold it up
        "join; value 0/0 1; value 0/1 1; value 1/0 1; value 1/1 1; lose 1; again => start 0 0",
        # rule 28: a later Welcome does not move the cursor of one that trains, which asks for no
        # data state any more
        "begin; step => report 0 1 1 training, report 1 1 1 training;"
        " lose 1; welcome 1 cursor=99 => join 1 3, report 0 1 1 training,"
        " report 1 1 1 training; later 2 => report 0 1 1 training, report 1 1 1 training",
        # rule 1: who is asked sends the model and its seed, which comes back as a Publish
        "dials; welcome 0 needs_model=1 => model 0 4; seed 0 => sendseed 0; again => none;"
        " value 0/0 0 => adopt 0/0 0",
        # and no seed from regions that hold later values
        "begin; step; call 0/0 0; seed 0 => fail TRY_AGAIN, no sendseed",
        # rule 2: another run ends this process, so that a fresh one starts
        "begin; lose 0; welcome 0 run=run-2 => fail TRY_AGAIN; lose 1; later 60 => no dial",
        # rule 20: an older reign than one already seen is left
        "dials; welcome 0 epoch=5; lose 0; welcome 0 epoch=4; seed 0 => hangup 0, no sendseed;"
        " lose 0; welcome 0 epoch=6 => none",
        # rule 44: a shard that says nothing is left and dialled again; a tick, or bytes of a value,
        # are something
        "begin; later 2; tick 0 0; later 1 => hangup 1, no hangup 0; lose 1; later 0.5 => dial 1;"
        " tick 0 0; back 1; later 2.9; bytes 1; tick 0 0; later 2.9 => no hangup 1",
        # who waits for a Welcome has not been promised any word
        "dials; connect 0; later 2.9; later 2.9 => no hangup 0",
        # time in which this process stood does not count: what was said is still to be read
        "begin; later 30 => no hangup 0, no hangup 1; later 2.9 => no hangup 0; later 0.2"
        " => hangup 0, hangup 1",
        # where the same term answers again it was only slow, and gets more time; another does not
        "begin; later 3.1 => hangup 0, hangup 1; lose 0; lose 1; back 0; welcome 1 epoch=2;"
        " later 3.1 => hangup 1, no hangup 0; later 3 => hangup 0",
        # a shard is not dialled while that is under way: the registrar is there again before
        # shard 1 has answered
        "dials; back 0 => dial 0, dial 1; lose 0; back 0 => none",
        # the loss of one session stops nothing and keeps the bases
        "begin; lose 1; step; call 0/0 0; step => report 0 1 1 training, offer 0/0 0 2,"
        " report 0 2 2 training; back 1 => report 0 2 2 training, report 1 2 2 training;"
        " call 1/0 0; step => offer 1/0 0 3,"
        " report 0 3 3 training, report 1 3 3 training",
        # a refusal that may pass is tried again after a back-off of 0.2 to 0.4 s
        "dials => dial 0; connect 0; end 0 SLOT_HELD; lose 0; later 0.1 => no fail;"
        " later 0.3 => dial 0",
        "dials => dial 0; connect 0; end 0 NOT_READY; lose 0; later 0.1 => no fail;"
        " later 0.3 => dial 0",
        # rule 22: a shard that has lost its store does not end the learner
        "begin; lose 1; connect 1; end 1 STORE_LOST; lose 1 => no fail; later 10 => dial 1",
        # only a session that stayed makes the next dial a first one
        "begin; " + 8 * "lose 0; welcome 0; " + "lose 0; later 0.4 => none; later 10 => dial 0;"
        " welcome 0; later 60; lose 0; later 0.4 => dial 0",
        # rule 22: what is held is sent by its own whole name if it is not older than asked for
        "begin 0 4; held 0/1 4 => gives 0/1 4; held 0/1 3 9 => gives 0/1 4;"
        " held 0/1 5; held 0/7 4 => none",
    ],
)  # fmt: skip
def test_a_learner_joins_is_refused_and_comes_back(scene: str) -> None:
    learner_side().play(scene)


def test_nothing_but_a_welcome_counts_before_the_welcome() -> None:
    side = learner_side().play("dials; connect 0")
    side.seen.clear()
    side.play("tick 0 5; seed 0").receive(0, final=pb.Final())
    assert side.seen == []


def test_a_join_says_who_asks_and_what_it_holds_and_has_seen_rule_3() -> None:
    side = learner_side().play("begin; step; tick 0 9; lose 1")
    side.seen.clear()
    ((_, join),) = side.play("connect 1").messages("join")
    assert (join.slot, join.uid, join.instance, join.incarnation) == ("here-0", "uid", "uid-1", 3)
    assert (join.run, join.run_hash) == (RUN, side.run_file.hash)
    assert [(each.slice, each.version) for each in join.held] == [
        (p, side.publish(1, p, 0).version.version) for p in (0, 1)
    ]
    assert (join.tick_seen, list(join.epochs_seen)) == (9, [1, 1])
    assert (join.t_m, join.cursor, join.observer) == (1, 1, False)


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
    first: Known, second: Known, start: Known
) -> None:
    side = learner_side().play("dials")
    for shard, (cursor, data_state) in enumerate((first, second)):
        side.welcome(shard, cursor=cursor, data_state=data_state)
    side.play("value 0/0 4; value 0/1 4; value 1/0 4; value 1/1 4; again")
    (command,) = side.take(Start)
    assert (command.cursor, command.data_state) == start


def test_what_is_held_brings_its_lineage_along_rule_22() -> None:
    side = learner_side().begin(number=4)
    lineage = [pb.SlotMerged(slot="b-0", incarnation=2, base=4, capture=3, cursor=9)]
    publish = side.publish(0, 1, 5)
    publish.lineage.extend(lineage)
    side.feed(side.exchange.published(0, publish, side.now))
    side.play("step; held 0/1 5")
    assert side.take(SendHeld) == [SendHeld(0, pb.Held(version=publish.version, lineage=lineage))]


# ------------------------------------------------------------ refusals


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
def test_a_permanent_refusal_ends_the_process_with_its_code_and_the_remedy_rule_3(
    code: pb.Code, exit_code: ExitCode
) -> None:
    side = learner_side().play("dials; connect 0")
    side.end(0, code)
    side.end(0, code)
    reason = "shard 0: because; remedy: do this"
    assert side.take(Fail) == [Fail(exit_code=exit_code, reason=reason)]  # said once


A_MATRIX = TensorSpec(name="a.weight", shape=(24, 8), dtype="float32", merge="rda")
A_BIAS = TensorSpec(name="b", shape=(), dtype="float32", merge="mean")
WIDER, HALF = replace(A_MATRIX, shape=(16, 8)), replace(A_MATRIX, dtype="bfloat16")
MEAN, FORM, HALF_FORM = replace(A_MATRIX, merge="average"), "float32 [24, 8]", "bfloat16 [24, 8]"


@pytest.mark.parametrize(
    ("own", "runs", "said"),
    [
        ([A_MATRIX, A_BIAS], [WIDER, A_BIAS], f"a.weight is {FORM}, in the run float32 [16, 8]"),
        ([HALF], [A_MATRIX, A_BIAS], f"a.weight is {HALF_FORM}, in the run {FORM}, and 1 more"),
        ([A_MATRIX], [A_MATRIX, A_BIAS], "b is not there, in the run float32 []"),
        ([A_MATRIX, A_BIAS], [A_MATRIX], "b is float32 [], in the run none"),
        ([A_MATRIX], [MEAN], "a.weight is merged by rda, in the run merged by average"),
        ([A_MATRIX], [A_MATRIX], ""),
    ],
)
def test_the_tensors_by_which_models_differ_are_named(
    own: list[TensorSpec], runs: list[TensorSpec], said: str
) -> None:
    found = difference(own, Layout(tuple(runs), 1, 1, ()).to_model().tensors)
    assert found.removesuffix(" differ") == (said and f": {said}")


def test_one_with_another_model_is_told_by_which_tensor_rule_1() -> None:
    side = learner_side().play("dials; connect 0")
    model = side.exchange.state.layout.to_model()
    model.tensors[0].shape[0] += 1
    side.receive(0, end=pb.End(code=pb.OTHER_LAYOUT, reason="another model", model=model))
    (fail,) = side.take(Fail)
    assert fail.reason.startswith("shard 0: another model: t0 is float32 [4], in the run float32")


def test_the_back_off_doubles_to_10_seconds_and_two_learners_differ() -> None:
    waits = [backoff_seconds("a", 0, attempt) for attempt in range(100)]
    assert all(0.2 <= wait <= 10.0 for wait in waits)
    assert max(waits[:2]) < 1.0
    assert max(waits) > 8.0
    assert len({backoff_seconds(*who, 5) for who in (("a", 0), ("b", 0), ("a", 1))}) == 3
    assert waits[5] == backoff_seconds("a", 0, 5)  # no randomness of its own
