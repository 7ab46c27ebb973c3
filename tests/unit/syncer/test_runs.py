"""Which run a log belongs to: rule 2."""

import dataclasses

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.history import History
from atoll_syncer.rules.runs import of_another_job
from unit.syncer.shard_side import RUN, begun, run_file, side


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
    one.feed(one.shard.answered(pb.HelloReply(run=RUN), one.now))
    assert History.of(one.entries).run_hash == run_file(shards=2).hash
