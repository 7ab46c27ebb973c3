"""Which run a log belongs to: rule 2."""

import dataclasses
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import Expected
from atoll_protos.layout import TensorSpec
from atoll_protos.run import Fragments, Region
from atoll_syncer.model import log
from atoll_syncer.model.history import History
from atoll_syncer.rules.runs import of_another_job
from unit.syncer.shard_side import KEY, RUN, begun, run_file, side, version


def test_the_entries_that_start_a_run_name_its_hash_and_its_layout_rule_2() -> None:
    one, _ = begun("a-0")
    history = History.of(one.entries)
    assert history.run_hash == run_file().hash
    assert one.state.layout is not None
    assert history.layout_digest == one.state.layout.digest
    assert of_another_job(history, run_file()) == ""


def test_a_length_may_change_without_another_run_rule_2() -> None:
    one, _ = begun("a-0")
    assert of_another_job(History.of(one.entries), run_file(steps=5000)) == ""


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(run_file(), seed=7),
        dataclasses.replace(run_file(), job="another"),
        run_file(outer_learning_rate=0.1),
        run_file(fragments=1),
        run_file(shards=2),
    ],
)
def test_a_store_of_another_manifest_is_not_carried_on_rule_2(other: object) -> None:
    assert isinstance(other, type(run_file()))
    one, _ = begun("a-0")
    reason = of_another_job(History.of(one.entries), other)
    assert run_file().hash in reason
    assert other.hash in reason


@pytest.mark.parametrize("fragments", [1, 3])
def test_a_log_without_the_hash_is_compared_by_its_layout_rule_2(fragments: int) -> None:
    one, _ = begun("a-0")
    documents = [log.to_document(entry) for entry in one.entries]
    for document in documents:
        document.pop("run_hash", None)
        document.pop("carried_on", None)
    history = History.of(log.from_document(document) for document in documents)
    assert (history.run, history.run_hash) == (RUN, "")
    assert of_another_job(history, run_file()) == ""
    reason = of_another_job(history, run_file(fragments=fragments))
    assert history.layout_digest in reason


def test_a_shard_that_learns_of_a_run_logs_its_hash_too_rule_2() -> None:
    one = side(shard=1, job=run_file(shards=2)).start()
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY), one.now))
    assert History.of(one.entries).run_hash == run_file(shards=2).hash


# ------------------------------------------------------------ a registrar without a run asks

TWO = Expected(regions=(Region(name="a", learners=2),), start_seconds=20)


def test_a_registrar_mints_when_every_learner_of_the_job_has_spoken_rule_2() -> None:
    one = side(fresh=False, expected=TWO).start()
    one.join("a-0")
    one.wait(5.0)
    assert one.state.history.run == ""
    one.join("a-1")
    assert one.state.history.run == RUN
    assert len(one.sent("welcome")) == 2


def test_one_that_is_started_no_more_is_not_asked_rule_2() -> None:
    one = side(fresh=False, expected=TWO).start()
    one.join("a-0")
    one.feed(one.shard.expected_heard(dataclasses.replace(TWO, absent=("a-1",)), one.now))
    one.wait(0.25)
    assert one.state.history.run == RUN


def test_one_that_is_missing_is_waited_for_no_longer_than_30_s_rule_2() -> None:
    one = side(fresh=False, expected=TWO).start()
    one.join("a-0")
    one.wait(29.5)
    assert one.state.history.run == ""
    one.wait(1.0)
    assert one.state.history.run == RUN


def test_a_run_that_the_last_one_names_is_carried_on_at_once_rule_2() -> None:
    one = side(fresh=False, expected=TWO).start()
    one.join("a-0")
    one.join("a-1", run="old", incarnation=4, held=[version(0, 9, run="old")])
    assert one.state.history.run == "old"
    assert one.state.history.taken["a-1"].incarnation == 4
    assert one.state.history.begun == {0}


def test_neither_an_observer_nor_another_job_speaks_for_a_learner_rule_2() -> None:
    one = side(fresh=False, expected=TWO).start()
    one.join("a-0")
    one.join("a-1", observer=True)
    one.join("a-1", run_hash="another")
    assert one.state.history.run == ""


def test_the_other_shards_are_asked_as_well_rule_2() -> None:
    one = side(fresh=False, job=run_file(shards=2), expected=TWO).start()
    one.join("a-0")
    one.join("a-1")
    assert one.state.history.run == ""
    one.feed(one.shard.registrar_request(1, pb.HelloRequest(shard=1, empty=True), one.now))
    one.wait(0.25)
    assert one.state.history.run == RUN


def test_a_registrar_that_knows_of_no_learner_asks_for_30_s_rule_2() -> None:
    one = side(fresh=False).start()
    for slot in ("a-0", "a-1", "b-0", "b-1"):
        one.join(slot)
    one.wait(29.0)
    assert one.state.history.run == ""


def test_a_run_of_an_earlier_version_with_24_fragments_is_carried_on_under_auto() -> None:
    """What a manifest without a number gave then; a model of fewer parts could not train."""
    tensors = [
        TensorSpec(name=f"t{n}", shape=(8,), dtype="float32", merge="rda") for n in range(30)
    ]
    earlier = run_file(fragments=24, period=24)
    layout = earlier.layout(tensors)
    assert layout.fragments == 24
    history = History(
        run_hash=earlier.hash,
        tensors=tuple(dataclasses.asdict(tensor) for tensor in tensors),
        layout_digest=layout.digest,
    )
    auto = run_file(fragments=Fragments.AUTO, period=24)
    assert of_another_job(history, earlier) == ""
    assert of_another_job(history, auto) == ""
    assert "run hash" in of_another_job(history, run_file(fragments=23, period=24))
    larger = dataclasses.replace(auto, shards=2)
    assert "run hash" in of_another_job(history, larger)


@pytest.mark.parametrize(
    ("damaged", "fields", "marked"),
    [
        (True, {"run": RUN}, True),
        (True, {"run": RUN, "empty": True}, False),
        (True, {"run": "another"}, False),
        (False, {"run": RUN}, False),  # it marks itself, and may be about to
    ],
)
def test_a_shard_with_values_is_marked_again_where_its_mark_may_be_lost_rule_1(
    damaged: bool, fields: dict[str, Any], marked: bool
) -> None:
    """Else it would take a seed over a trained model if its store were lost as well."""
    before, _ = begun("a-0")
    history = History.of(before.entries)
    if damaged:
        history.lose(1)
    one = side(history=history, pod="next").start()
    one.feed(one.shard.registrar_request(1, pb.HelloRequest(shard=1, **fields), one.now))
    assert (1 in one.state.history.begun) is marked
