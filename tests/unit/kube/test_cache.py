"""The cache never shows an object as it was before a write, and forgets what is gone."""

from typing import Any

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.observed.cache import Cache, EventFailure, Sight, failure
from atoll_protos.names import Label

KEY = ("demo", "tiny")


def pod(name: str, version: int, uid: str = "", node: str = "n1", job: str = "tiny") -> Any:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "demo", "uid": uid or f"uid-{name}",
            "resourceVersion": str(version), "labels": {Label.JOB: job},
        },
        "spec": {"nodeName": node},
    }  # fmt: skip


def names(cache: Cache) -> list[str]:
    return [each["metadata"]["name"] for each in cache.children(KEY)]


def test_a_job_and_its_children_are_found_by_its_key() -> None:
    cache, job = Cache(), pod("tiny", 1, job="")
    assert cache.seen(KIND, job) == {KEY}
    assert cache.seen("Pod", pod("a", 2)) == {KEY}
    assert cache.seen("Pod", pod("b", 3, job="other")) == {("demo", "other")}
    assert cache.job(KEY) is job
    assert names(cache) == ["a"]
    assert cache.gone("Pod", pod("a", 4)) == {KEY}
    assert names(cache) == []
    assert cache.job(("demo", "other")) is None


def test_what_was_written_is_there_at_once_and_older_news_change_nothing() -> None:
    cache = Cache()
    cache.seen("Pod", pod("a", 5))
    cache.written(pod("a", 9, node="written"))
    assert cache.seen("Pod", pod("a", 7, node="older")) == set()
    assert cache.seen("Pod", pod("a", 9, node="the same")) == set()
    assert cache.children(KEY)[0]["spec"]["nodeName"] == "written"
    assert cache.seen("Pod", pod("a", 10, node="newer")) == {KEY}  # versions are numbers


def test_what_was_deleted_does_not_come_back_by_older_news() -> None:
    cache = Cache()
    cache.seen("Pod", pod("a", 5))
    cache.deleted("uid-a")
    assert names(cache) == []
    assert cache.seen("Pod", pod("a", 6)) == set()  # its end had begun
    assert names(cache) == []
    cache.seen("Pod", pod("a", 8, uid="next"))  # made again under its name
    cache.gone("Pod", pod("a", 7))
    assert names(cache) == ["a"]
    assert not cache.deleted_uids


def test_a_list_takes_out_what_is_gone_but_not_what_was_written_after_it() -> None:
    cache = Cache()
    for number, name in enumerate("abc"):
        cache.seen("Pod", pod(name, number))
    cache.written(pod("new", 20))
    cache.deleted("uid-c")
    assert cache.listed("Pod", "", [pod("a", 1), pod("c", 2)], 10) == {KEY}
    assert names(cache) == ["a", "new"]
    cache.listed("Pod", "", [pod("a", 1), pod("new", 20)], 21)
    assert not cache.deleted_uids


def test_a_list_of_one_namespace_or_kind_says_nothing_of_others() -> None:
    cache = Cache()
    cache.seen("Pod", pod("a", 1))
    cache.listed("Pod", "elsewhere", [], 10)
    cache.listed("Service", "", [], 10)
    assert names(cache) == ["a"]
    assert cache.seen("Pod", pod("a", 2, job="other")) == {KEY, ("demo", "other")}
    assert names(cache) == []  # it has lost the label


def test_nothing_is_judged_before_all_is_listed_or_while_a_watch_is_broken() -> None:
    sight = Sight(tried_at=0.0)
    cache = Cache(sights={"/api/v1/pods": sight})
    assert cache.problem("demo") == "/api/v1/pods is not listed yet"
    sight.listed = True
    sight.works(1.0)
    assert cache.problem("demo") == ""
    sight.fails("403: forbidden", 2.0)
    sight.fails("503: away", 3.0)
    assert cache.problem("demo") == "/api/v1/pods cannot be watched: 503: away"
    assert sight.broken_at == 2.0
    sight.works(4.0)
    assert cache.problem("demo") == ""


def said(message: str, minute: int) -> EventFailure:
    """An Event's failure, said at this minute."""
    at = f"2026-11-01T10:{minute:02}:00Z"
    return EventFailure(uid="u", namespace="demo", event=f"e{minute}", message=message, at=at)


WHY = said('secret "data" not found', 1)
SUMMARY = said("Unable to attach or mount volumes: timed out", 2)


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([said("old", 1), said("new", 2)], said("new", 2)),
        ([said("new", 2), said("old", 1)], said("new", 2)),
        ([WHY, SUMMARY], WHY),  # that volumes could not be mounted is less than why
        ([SUMMARY, WHY], WHY),
        ([SUMMARY], SUMMARY),
    ],
)
def test_the_latest_failure_of_a_workload_is_kept_in_whatever_order_a_list_has_them(
    events: list[EventFailure], kept: EventFailure
) -> None:
    cache = Cache()
    cache.failures_listed("", events)
    assert cache.failures == {"u": kept}
    cache.failed("DELETED", said("another", 3))
    assert cache.failures == {"u": kept}


def test_a_sandbox_that_is_tried_again_and_again_is_one_message() -> None:
    said = {
        "metadata": {"name": "e", "namespace": "demo", "creationTimestamp": "then"},
        "involvedObject": {"uid": "u", "kind": "Pod"},
        "reason": "FailedCreatePodSandBox",
    }
    found = [failure({**said, "message": f'network for "{n * 64}": no IP'}) for n in "ab"]
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].message == 'network for "...": no IP'
