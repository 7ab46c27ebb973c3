"""When the next pass comes: soon while time alone may change something, late for a steady job."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.observed.objects import seconds_of
from atoll_operator.kube.observed.observation import Observation
from atoll_operator.kube.plan.planner import AGAIN_SECONDS, POLL_SECONDS, STEADY_SECONDS
from atoll_operator.kube.plan.replacements import Tally, nears_storm
from atoll_operator.kube.plan.status import BUSY_WRITES, WRITE_SECONDS
from unit.kube.cluster_values import job
from unit.kube.planner_side import CHANGES, NOW, planned
from unit.kube.scenes import scene

STARTED = "2027-01-15T07:58:20Z"
WELL = (
    "us-east-0 @n1; us-east-1 @n2; eu-west-0 @n3; shard @n3; evaluator @n3; Training all; n0 gone"
)
PAIR = "spec.learner.hosts=2"
PAIRS = WELL.replace(" @n1", "/* @n1").replace(" @n2", "/* @n2").replace("0 @n3;", "0/* @n3;", 1)


def steady(more: str = "", *changes: str, well: str = WELL, **remembered: Any) -> Observation:
    """A job whose status says that it trains as it should; since then `more` has come."""
    before = planned(scene(well, *changes, unwritten_seconds=60.0)).status
    assert before is not None
    found = scene(f"{well}; {more}", *changes, **({"unwritten_seconds": 60.0} | remembered))
    return replace(found, raw={**found.raw, "status": before.status})


@pytest.mark.parametrize(("changes", "well"), [((), WELL), ((PAIR,), PAIRS)])
def test_a_steady_job_gets_its_next_pass_after_seconds(changes: tuple[str, ...], well: str) -> None:
    found = planned(steady("", *changes, well=well))
    assert (found.status, found.children.apply, found.delete) == (None, (), ())
    assert found.pause_seconds == STEADY_SECONDS


def test_progress_is_written_when_it_is_due_and_not_a_pass_later() -> None:
    after = planned(steady(unwritten_seconds=WRITE_SECONDS - 3.0))
    assert after.pause_seconds == 3.0
    written = planned(steady("syncer tick=500"))
    assert written.status is not None
    assert written.pause_seconds == STEADY_SECONDS
    nearly = planned(steady(unwritten_seconds=WRITE_SECONDS - 0.1))
    assert nearly.pause_seconds == POLL_SECONDS


def test_a_status_that_is_put_off_is_written_although_nothing_else_brings_a_pass() -> None:
    """A job that was suspended after many changes said for five minutes that it had pods."""
    recent = {"unwritten_seconds": 2.0, "writes_a_minute": BUSY_WRITES}
    rests = scene("", "spec.suspend=true", **recent)
    rejected = replace(rests, job=None, error="spec.steps: must be at least 1")
    for each in (rests, rejected):
        found = planned(each)
        assert (found.status, found.pause_seconds) == (None, WRITE_SECONDS - 2.0)
    assert planned(replace(rejected, remembered=steady().remembered)).pause_seconds is None


ONE_HOST = PAIRS.replace("us-east-1/*", "us-east-1/0")
UNSTEADY: dict[str, Observation] = {
    "a shard does not answer": steady(replies=(None,), silent_seconds={0: 1.0}),
    "a shard does not serve": steady("syncer recovering"),
    "a learner has lost its session": steady("Lost eu-west-0"),
    "a learner is stalled": steady("Stalled eu-west-0"),
    "another pod than the learner's trains": steady("Training eu-west-0:uid=new"),
    "a pod is not ready": steady("", well=WELL.replace("shard", "shard unready")),
    "a host is not ready": steady(
        "", PAIR, well=f"{PAIRS}".replace("1/*", "1/0") + "; us-east-1/1 unready"
    ),
    "a pod is being deleted": steady("", well=WELL.replace("@n1", "@n1 going")),
    "a pod has an old template": steady("", well=WELL.replace("@n1", "@n1 old")),
    "a pod is missing": steady("", well=WELL.replace("evaluator @n3; ", "")),
    "a host is missing": steady("", PAIR, well=ONE_HOST),
    "a controller has not observed a change": steady("set us-east unobserved"),
    "a controller cannot make a pod": steady("set us-east trouble=quota"),
    "a node is overdue": steady("n1 silent=12"),
    "a node is lost": steady("n1 silent=30"),
    "a node is gone": steady("n3 gone"),
    "a storm is near": steady("n4 n5 silent=12"),
    "a storm has just been": steady(storm_seconds={"us-east": 3.0}),
    "nodes cannot be seen": replace(steady(), nodes=None),
    "the manifest is wrong": replace(steady(), reason="Invalid", error="spec.steps: no"),
    "a pod could not be deleted": steady(undeleted=("Pod x: no",)),
    "the status changes all the time": steady(writes_a_minute=BUSY_WRITES),
    "a child is missing": replace(steady(), children=steady().children[1:]),
}


@pytest.mark.parametrize("what", UNSTEADY)
def test_a_job_is_looked_at_each_second_while(what: str) -> None:
    pause = planned(UNSTEADY[what]).pause_seconds
    assert pause is not None
    assert AGAIN_SECONDS <= pause <= POLL_SECONDS


def test_a_deadline_is_seen_when_it_passes() -> None:
    assert seconds_of(STARTED) == NOW - 100.0
    found = replace(steady(), job=job(*CHANGES, "spec.activeDeadlineSeconds=103"))
    status = {**found.raw["status"], "startTime": STARTED}
    pause = planned(replace(found, raw={**found.raw, "status": status})).pause_seconds
    assert pause == pytest.approx(3.0)


def test_a_few_lost_nodes_of_many_are_no_storm_in_the_making() -> None:
    failure = job().spec.failure
    assert not nears_storm(Tally(nodes=5000, lost=20), failure)
    assert nears_storm(Tally(nodes=5000, lost=5000 * failure.storm_percent // 100), failure)
    assert not nears_storm(Tally(nodes=4, lost=1), failure)
    assert nears_storm(Tally(nodes=4, lost=2), failure)
