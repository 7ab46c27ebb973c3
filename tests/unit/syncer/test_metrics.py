"""A shard's metrics: names and labels, what an effect of its rules counts, what gauges show."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.states import SLOT_TEXTS
from atoll_syncer.metrics import OFFER_OUTCOMES, PREFIX, STORE_TROUBLES, Metrics
from atoll_syncer.model.effects import Drop, Effect, EndSession, Stage, Tape
from unit.syncer.shard_side import KEY, RUN, Side, begun, digest, run_file, side, step_all, version

Samples = dict[str, float]

BOUNDED = {"state", "outcome", "trouble", "code", "reason", "le"}


def collected() -> list[Metric]:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.refusals.labels("FULL").inc()
    metrics.commit_seconds.observe(0.2)
    return list(registry.collect())


def test_every_name_has_the_prefix_and_a_base_unit_or_counts_something() -> None:
    for metric in collected():
        assert metric.name.startswith("atoll_syncer_")
        assert not metric.name.endswith(("_ms", "_milliseconds", "_mb", "_percent"))
        assert metric.documentation


def test_counters_end_in_total() -> None:
    text = generate_latest(Metrics(CollectorRegistry()).registry).decode()
    for line in text.splitlines():
        if line.startswith("# TYPE") and line.endswith(" counter"):
            assert line.split()[2].endswith("_total")


def test_no_label_is_unbounded() -> None:
    for metric in collected():
        for sample in metric.samples:
            assert set(sample.labels) <= BOUNDED


def test_states_and_outcomes_are_there_from_the_first_scrape() -> None:
    text = generate_latest(Metrics(CollectorRegistry()).registry).decode()
    for state in SLOT_TEXTS.values():
        assert f'atoll_syncer_slots{{state="{state}"}} 0.0' in text
    for outcome in OFFER_OUTCOMES:
        assert f'atoll_syncer_offers_total{{outcome="{outcome}"}} 0.0' in text
    for trouble in STORE_TROUBLES:
        assert f'atoll_syncer_store_troubles_total{{trouble="{trouble}"}} 0.0' in text


# ---------------------------------------------------------------- what is counted


def shown(metrics: Metrics) -> Samples:
    """Every sample that is not 0, by its name without the prefix, and its label; no buckets."""
    found = {}
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            if sample.value and not sample.name.endswith(("_bucket", "_created")):
                label = "".join(f" {value}" for value in sample.labels.values())
                found[sample.name.removeprefix(f"{PREFIX}_") + label] = sample.value
    return found


def counted(*effects: Effect) -> Samples:
    metrics = Metrics(CollectorRegistry())
    for effect in effects:
        metrics.count(effect)
    return shown(metrics)


def open_round(quorum: int) -> tuple[Side, list[int]]:
    """Slice 1 is due and called of two learners; what led to it counts nothing."""
    one, sessions = begun("a-0", "a-1", quorum=quorum, grace=False)
    step_all(one, sessions, range(1, 6))
    assert counted(*one.effects) == {}
    return one, sessions


def test_starting_seeding_and_training_count_nothing() -> None:
    one = side().start()
    session = one.join("a-0")
    one.model(session)
    one.seed(session)
    one.report(session, 1)
    assert {type(effect) for effect in one.effects} >= {Tape}
    assert counted(*one.effects) == {}


def test_a_commit_counts_its_offers_and_its_times() -> None:
    one, sessions = open_round(quorum=2)
    one.now += 0.5
    one.offer(sessions[0], 1, 5)
    one.durable = False
    one.now += 1.5
    one.offer(sessions[1], 1, 5)
    one.now += 0.25
    one.flush()
    assert counted(*one.effects) == {
        "commits_total": 1,
        "offers_total merged": 2,
        "quorum_seconds_count": 1,
        "quorum_seconds_sum": 2.0,
        "commit_seconds_count": 1,
        "commit_seconds_sum": 0.25,
    }


def test_an_offer_that_comes_after_the_close_is_counted_late() -> None:
    one, sessions = open_round(quorum=1)
    one.offer(sessions[0], 1, 5)
    one.wait(0.5)
    name, counters = digest(1, 0), pb.Counters(steps=5, tokens=50)
    late = pb.Offer(slice=1, base=0, base_digest=name, capture=5, counters=counters)
    one.effects.clear()
    one.send(sessions[1], pb.Transfer(offer=late, encoding=pb.BF16))
    assert counted(*one.effects) == {"offers_total late": 1}


def test_an_offer_of_a_dead_incarnation_is_counted_dropped() -> None:
    one, sessions = open_round(quorum=2)
    one.offer(sessions[0], 1, 5)
    assert len(one.take(Stage)) == 1
    one.leave(sessions[0])
    one.join("a-0", instance="new")
    assert len([effect for effect in one.effects if isinstance(effect, Drop)]) == 1
    assert counted(*one.effects) == {"offers_total dropped": 1}


def test_an_offer_that_is_not_finite_is_counted_late() -> None:
    one, sessions = open_round(quorum=2)
    name, counters = digest(1, 0), pb.Counters(steps=5, tokens=50)
    bad = pb.Offer(slice=1, base=0, base_digest=name, capture=5, counters=counters)
    head = pb.Transfer(offer=bad, encoding=pb.BF16)
    one.feed(one.shard.transfer_started(sessions[0], head, one.now))
    one.feed(one.shard.transfer_rejected(sessions[0], "not finite", one.now, head, final=True))
    assert counted(*one.effects) == {"offers_total late": 1}


def test_a_bad_transfer_is_a_refusal_and_a_rejected_offer() -> None:
    one, sessions = open_round(quorum=2)
    one.feed(one.shard.transfer_rejected(sessions[0], "truncated", one.now))
    assert counted(*one.effects) == {
        "refusals_total BAD_TRANSFER": 1,
        "offers_total rejected": 1,
    }


def test_a_superseded_incarnation_is_a_refusal_and_a_zombie() -> None:
    one, _ = begun("a-0")
    request = pb.SetOwnerRequest(slot="a-0", uid="another", word=0)
    one.feed(one.shard.registrar_request(1, request, one.now))
    assert counted(*one.effects) == {"refusals_total SUPERSEDED": 1, "zombies_refused_total": 1}


def test_another_refusal_is_counted_by_its_code_and_is_no_offer_and_no_zombie() -> None:
    one, _ = begun("a-0")
    one.join("b-0", run_hash="another")
    one.join("c-0")
    one.join("d-0")
    assert counted(*one.effects) == {
        "refusals_total OTHER_RUN_HASH": 1,
        "refusals_total UNKNOWN_SLOT": 2,
    }


@pytest.mark.parametrize("code", pb.Code.values())
def test_every_code_of_the_protocol_can_be_counted(code: pb.Code) -> None:
    assert counted(EndSession(1, pb.End(code=code)))[f"refusals_total {pb.Code.Name(code)}"] == 1


def test_a_slice_taken_back_from_a_learner_is_a_commit_without_offers_and_times() -> None:
    one = side(shard=1, job=run_file(shards=2)).start()
    for _ in range(2):
        said = pb.HelloReply(run=RUN, key=KEY, begun=True, alive=["a-0"])
        one.feed(one.shard.answered(said, one.now))
    held = [version(0, 9), version(1, 8)]
    session = one.join("a-0", held=held, incarnation=1, run=RUN, epochs_seen=[1])
    one.model(session)
    for fragment, number in ((0, 9), (1, 8)):
        one.wait(1.0)
        one.held(session, version(fragment, number))
    assert counted(*one.effects) == {"commits_total": 2, "recoveries_total": 2}


# ---------------------------------------------------------------- gauges


def test_the_gauges_show_what_is_there_now_and_go_back() -> None:
    one, sessions = open_round(quorum=2)
    one.join("", instance="eye", observer=True)
    one.leave(sessions[1])
    metrics = Metrics(CollectorRegistry())
    metrics.refresh(one.state, 4096, 3, one.now)
    assert shown(metrics) == {
        "epoch": 1,
        "tick": one.state.clock.tick,
        "sessions": 2,
        "slots Training": 1,
        "slots Lost": 1,
        "rounds_open": 1,
        "staged_bytes": 4096,
        "tape_dropped_lines": 3,
    }
    again = one.join("a-1")
    one.report(again, 5)
    one.offer(sessions[0], 1, 5)
    one.offer(again, 1, 5)
    metrics.refresh(one.state, 0, 3, one.now)
    assert shown(metrics) == {
        "epoch": 1,
        "tick": one.state.clock.tick,
        "sessions": 3,
        "slots Training": 2,
        "merge_share_max": 0.5,
        "tape_dropped_lines": 3,
    }


def test_the_grace_of_an_open_round_is_shown() -> None:
    one, sessions = begun("a-0", "a-1", quorum=1, grace=True)
    step_all(one, sessions, range(1, 6))
    one.offer(sessions[0], 1, 5)
    metrics = Metrics(CollectorRegistry())
    metrics.refresh(one.state, 0, 0, one.now)
    assert shown(metrics)["grace_seconds"] == one.state.rounds.open[1].grace_seconds > 0
