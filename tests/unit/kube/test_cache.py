"""The cache never shows an object as it was before a write, and forgets what is gone."""

from typing import Any

from atoll_operator.api.spec import KIND
from atoll_operator.kube.cache import Cache, Failure, Sight, failure, slim, slim_node
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
    assert cache.seen("Pod", pod("a", 10, node="newer")) == {KEY}


def test_versions_are_compared_as_numbers() -> None:
    cache = Cache()
    cache.written(pod("a", 1000))
    assert cache.seen("Pod", pod("a", 999)) == set()


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


def test_an_object_that_loses_the_label_is_no_child_any_more() -> None:
    cache = Cache()
    cache.seen("Pod", pod("a", 1))
    assert cache.seen("Pod", pod("a", 2, job="other")) == {KEY, ("demo", "other")}
    assert names(cache) == []


def test_jobs_with_pods_on_a_node() -> None:
    cache = Cache()
    cache.seen("Pod", pod("a", 1))
    cache.seen("Pod", pod("b", 2, node="n2", job="other"))
    assert cache.jobs_on(["n2", "n3"]) == {("demo", "other")}
    assert cache.jobs_on([]) == set()


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


def test_of_a_pod_only_what_is_read_is_kept() -> None:
    container = {"name": "learner", "image": "i", "env": [{"name": "A"}], "args": ["x"]}
    raw = pod("a", 1)
    raw["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    raw["spec"]["containers"] = [container]
    kept = slim("Pod", raw)
    assert kept["spec"]["containers"] == [{"name": "learner", "image": "i"}]
    assert "managedFields" not in kept["metadata"]


def test_of_a_node_its_conditions_and_taints_are_kept_and_not_its_images() -> None:
    kept = slim_node(
        {
            "metadata": {
                "name": "n",
                "uid": "u",
                "resourceVersion": "1",
                "annotations": {"a": ""},
                "creationTimestamp": "then",
            },
            "spec": {"taints": [{"key": "k"}], "podCIDR": "10.0.0.0/24"},
            "status": {
                "conditions": [{"type": "Ready"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "images": [{"names": ["x"]}],
            },
        }
    )
    assert kept == {
        "metadata": {
            "name": "n",
            "uid": "u",
            "resourceVersion": "1",
            "creationTimestamp": "then",
        },
        "spec": {"taints": [{"key": "k"}]},
        "status": {
            "conditions": [{"type": "Ready"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }


def test_the_latest_failure_of_a_workload_is_kept_in_whatever_order_a_list_has_them() -> None:
    cache = Cache()
    old, new = (
        Failure(uid="u", namespace="demo", event=name, message=name, at=at)
        for name, at in (("z", "2026-11-01T10:00:00Z"), ("a", "2026-11-01T11:00:00Z"))
    )
    cache.failures_listed("", [new, old])
    assert cache.failures["u"] == new
    cache.failed("DELETED", old)
    assert cache.failures["u"] == new


def test_that_volumes_could_not_be_mounted_is_less_than_why() -> None:
    cache = Cache()
    why, summary = (
        Failure(uid="u", namespace="demo", event=event, message=message, at=at)
        for event, message, at in (
            ("a", 'secret "data" not found', "2026-11-01T10:00:00Z"),
            ("b", "Unable to attach or mount volumes: timed out", "2026-11-01T10:02:00Z"),
        )
    )
    for events in ([why, summary], [summary, why]):
        cache.failures_listed("", events)
        assert cache.failures["u"] == why
    cache.failures_listed("", [summary])
    assert cache.failures["u"] == summary


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
