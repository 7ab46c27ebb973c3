"""How many children jobs may have: of one job, of a namespace, of an install."""

import json
from typing import Any

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.names import ACCEPTED_SPEC, accepted_name
from atoll_operator.kube.observed.cache import TEMPLATE_BYTES, Cache, Ledger, count
from atoll_operator.kube.settings import Limits
from atoll_protos.names import Label
from unit.kube.world import KEY, World

LONG = {"spec": {"containers": [{"env": [{"name": "A", "value": "x" * TEMPLATE_BYTES}]}]}}


def spec(learners: int, **more: Any) -> dict[str, Any]:
    """With one shard, which is a child, too."""
    return {"regions": [{"name": "here", "learners": learners}], **more}


@pytest.mark.parametrize(
    ("given", "over", "children"),
    [
        (spec(5), False, 6),
        (spec(5, learner={"hosts": 3}), False, 16),
        (spec(5, learner={"hosts": 3}), True, 6),  # its StatefulSets stay, without pods
        (spec(0), False, 2),
        (spec(5), True, 2),
        (spec(5, learner={"template": LONG}), False, 7),
        (spec(5, learner={"hosts": 2, "template": LONG}), False, 16),
        ({"regions": [{"name": "here", "learners": 5, "podOverrides": LONG}]}, False, 7),
        (spec(1, syncer={"shards": 3}, evaluator={"template": LONG}), False, 6),
        (spec(1, syncer={"region": "there", "shards": 3}), False, 1),
        ({"regions": [{"name": "there", "learners": 5}, {"name": "here"}]}, False, 1),
        ({"regions": [None, {"name": "here", "learners": "x"}], "learner": 3}, False, 1),
        ({"regions": None, "syncer": []}, False, 0),
    ],
)
def test_children_are_pods_and_what_stays_without_them_and_large_templates(
    given: dict[str, Any], over: bool, children: int
) -> None:
    assert count(given, "here".__eq__, over=over) == children


class Jobs:
    """A cache with a ledger, to which a test adds jobs; the first one is the oldest."""

    def __init__(self, **limits: float) -> None:
        self.cache, self.version = Cache(ledger=Ledger(limits=Limits(**limits))), 0
        self.uids: dict[str, int] = {}

    def shows(self, name: str, learners: int, over: bool = False, **more: Any) -> set[Any]:
        """`NAMESPACE/NAME` as it is now; the jobs that are to have a pass for it."""
        self.version += 1
        number = self.uids.setdefault(name, len(self.uids))
        namespace, _, short = name.partition("/")
        metadata = {
            "namespace": namespace, "name": short, "uid": f"uid-{number}",
            "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
            "resourceVersion": str(self.version),
        }  # fmt: skip
        said = [{"type": "Complete", "status": "True"}] if over else []
        job = {"metadata": metadata, "spec": spec(learners - 1, **more)}
        return self.cache.seen(KIND, {**job, "status": {"conditions": said}})

    def accepts(self, name: str, learners: int) -> None:
        """The operator has accepted a manifest."""
        self.version += 1
        namespace, _, short = name.partition("/")
        labels = {Label.JOB: short, Label.JOB_UID: f"uid-{self.uids[name]}"}
        metadata = {
            "namespace": namespace, "name": accepted_name(short), "uid": f"map-{name}",
            "resourceVersion": str(self.version), "labels": labels,
        }  # fmt: skip
        data = {ACCEPTED_SPEC: json.dumps(spec(learners - 1))}
        self.cache.written({"kind": "ConfigMap", "metadata": metadata, "data": data})

    def denied(self, name: str) -> str:
        namespace, _, short = name.partition("/")
        return str(self.cache.denied((namespace, short)) or "")

    def goes(self, name: str) -> set[Any]:
        namespace, _, short = name.partition("/")
        raw = self.cache.job((namespace, short))
        assert raw is not None
        return self.cache.gone(KIND, raw)


def test_a_job_a_namespace_and_an_install_have_their_limits_which_the_words_name() -> None:
    jobs = Jobs(of_job=10, of_namespace=15, in_all=24)
    jobs.shows("a/large", 11)
    jobs.shows("a/first", 10)
    jobs.shows("a/second", 6)
    jobs.shows("b/first", 10)
    jobs.shows("c/first", 5)
    jobs.shows("c/second", 4)
    assert "asks for 11 children" in jobs.denied("a/large")
    assert "a job may have 10; use" in jobs.denied("a/large")
    assert "limits.childrenPerJob raised" in jobs.denied("a/large")
    assert "a namespace may have 15, of which 5 are left" in jobs.denied("a/second")
    assert "limits.childrenPerNamespace" in jobs.denied("a/second")
    assert "this install may have 24, of which 4 are left" in jobs.denied("c/first")
    assert "limits.children raised" in jobs.denied("c/first")
    assert not any(map(jobs.denied, ("a/first", "b/first", "c/second")))


def test_no_newer_job_takes_from_an_older_one_and_what_a_job_has_stays_whatever_the_limit() -> None:
    jobs = Jobs(of_namespace=10)
    jobs.shows("a/old", 6)
    jobs.shows("a/new", 5)
    assert not jobs.denied("a/old")  # whichever of them has its pass first
    assert jobs.denied("a/new")
    jobs.accepts("a/new", 5)
    assert not jobs.denied("a/new")
    assert jobs.denied("a/old")
    jobs.cache.ledger.limits = Limits(of_job=2, of_namespace=2, in_all=2)
    for learners in (5, 3):  # as it was, or less
        jobs.shows("a/new", learners)
        assert not jobs.denied("a/new")
    jobs.shows("a/new", 6)
    assert jobs.denied("a/new")


def test_a_job_that_waits_has_a_pass_when_there_is_room_and_not_before() -> None:
    jobs = Jobs(of_namespace=10)
    waits = {("a", "waits")}
    jobs.shows("a/one", 6)
    jobs.accepts("a/one", 6)
    jobs.shows("a/two", 4)
    jobs.shows("a/waits", 4)
    assert jobs.denied("a/waits")
    assert not jobs.shows("a/one", 5) & waits  # not accepted yet
    assert waits <= jobs.goes("a/two")
    assert not jobs.denied("a/waits")
    assert not jobs.shows("a/one", 5) & waits


def test_the_room_that_a_smaller_manifest_leaves_is_there_when_that_is_accepted() -> None:
    jobs = Jobs(of_namespace=10)
    jobs.shows("a/one", 8)
    jobs.accepts("a/one", 8)
    jobs.shows("a/waits", 4)
    assert jobs.denied("a/waits")
    jobs.shows("a/one", 5)
    jobs.accepts("a/one", 5)  # of which the watch shows the operator no more than it knows
    (accepted,) = jobs.cache.children(("a", "one"))
    assert ("a", "waits") in jobs.cache.seen("ConfigMap", accepted)


def test_one_that_is_over_leaves_room_and_one_that_was_made_suspended_asks_for_none() -> None:
    jobs = Jobs(of_namespace=10)
    jobs.shows("a/queued", 10, suspend=True)
    jobs.shows("a/runs", 8)
    jobs.accepts("a/runs", 8)
    jobs.shows("a/next", 8)
    assert jobs.denied("a/next")
    assert ("a", "next") in jobs.shows("a/runs", 8, over=True)
    assert not jobs.denied("a/next")
    jobs.shows("a/runs", 9, suspend=True)
    jobs.accepts("a/next", 8)
    assert jobs.denied("a/runs")  # one that is suspended grows as little as one that runs


def test_a_job_without_room_makes_nothing_says_why_and_begins_when_there_is() -> None:
    world = World()
    world.server.cache.ledger.limits = Limits(of_job=2)
    assert [each for each in world.run() if not each.startswith("event")] == ["status"]
    assert not world.server.children
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TooManyChildren")
    assert accepted["message"].startswith("spec.regions: asks for ")
    world.server.cache.ledger.limits = Limits()
    world.server.cache.uncounted.add(KEY)
    world.run()
    assert world.condition("Accepted") == "True"
    world.server.cache.ledger.limits = Limits(of_job=2)
    world.edit(regions=[{"name": "us-east", "learners": 9}])
    world.runs()
    assert "the manifest that was accepted last" in world.said("Accepted")["message"]
    assert world.live("StatefulSet", "tiny-us-east")["spec"]["replicas"] < 9
