"""`atoll logs JOB`: the pods' logs, by the names that processes have on one machine too."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.client import pod_logs
from atoll_protos.errors import SpecError
from unit.kube.person_side import Cluster

SECONDS_MAX = 60.0


def add(cluster: Cluster, name: str, role: str, *written: str, **labels: str) -> None:
    """A pod whose container has written these lines; none: it waits for its image."""
    pod = cluster.add_pod(name, role, **labels)
    if not written:
        pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ErrImagePull"}}
    cluster.logs[name] = [f"2026-01-01T00:00:{n:02}.5Z {line}" for n, line in enumerate(written)]


def shown(*words: str) -> list[str]:
    """The lines that `atoll logs tiny ...` prints."""
    return CliRunner().invoke(cli.app, ["logs", "tiny", *words]).output.splitlines()


def refusal(*words: str) -> str:
    return str(CliRunner().invoke(cli.app, ["logs", "tiny", *words]).exception)


def fill(cluster: Cluster) -> None:
    add(cluster, "tiny-us-east-0", "learner", "one", "two")
    add(cluster, "tiny-us-east-1", "learner")
    add(cluster, "tiny-syncer-0-abc", "shard", "ready", **{"atoll.dev/shard": "0"})
    add(cluster, "tiny-evaluator-abc", "evaluator", "measured")


def test_the_pods_of_a_job_are_told_apart_by_slot_shard_and_evaluator(cluster: Cluster) -> None:
    fill(cluster)
    assert shown("--tail", "1") == [
        "[evaluator] measured",
        "[shard-0] ready",
        "[us-east-0] two",
        "[us-east-1] (no log: container main is waiting to start)",
    ]
    add(cluster, "other-us-east-0", "learner", "mine", **{"atoll.dev/job": "other"})
    assert "mine" not in str(shown())


def test_a_slot_means_all_hosts_of_its_learner_and_one_process_alone_has_no_prefix(
    cluster: Cluster,
) -> None:
    for host in (0, 1):
        slot = {"atoll.dev/slot": "us-east-0"}
        add(cluster, f"tiny-us-east-0-{host}", "learner", f"of {host}", **slot)
    add(cluster, "tiny-us-east-1-0", "learner", "another", **{"atoll.dev/slot": "us-east-1"})
    assert shown("us-east-0") == ["[us-east-0-0] of 0", "[us-east-0-1] of 1"]
    assert shown("us-east-0-1") == ["of 1"]
    assert "it has us-east-0-0, us-east-0-1, us-east-1-0" in refusal("us-east-7")


def test_a_shard_means_both_of_its_processes_where_one_waits(cluster: Cluster) -> None:
    shard, second = {"atoll.dev/shard": "0"}, {"atoll.dev/process": "b"}
    add(cluster, "tiny-syncer-0-abc", "shard", "serves", **shard)
    add(cluster, "tiny-syncer-0-b-abc", "shard", "waits", **shard, **second)
    assert shown("shard-0") == ["serves", "[shard-0-b] waits"]
    assert shown("shard-0-b") == ["waits"]


def test_the_namespace_is_the_contexts_or_the_given_one(cluster: Cluster) -> None:
    assert pod_logs.connect("tiny", "", "").namespace == "team"
    assert pod_logs.connect("tiny", "", "other").namespace == "default"
    assert pod_logs.connect("tiny", "mine", "other").namespace == "mine"
    with pytest.raises(SpecError, match=r"has no pods in the namespace team; .*kubectl get dtj"):
        list(pod_logs.connect("tiny", "", "").lines("", tail=None, follow=False))
    cluster.refused[""] = (403, "pods is forbidden")
    with pytest.raises(SpecError, match="the cluster refuses: pods is forbidden"):
        list(pod_logs.connect("tiny", "", "").lines("", tail=None, follow=False))


def test_a_context_is_enough_where_none_is_current(cluster: Cluster) -> None:
    fill(cluster)
    file = Path(os.environ["KUBECONFIG"])
    whole = yaml.safe_load(file.read_text())
    del whole["current-context"]
    file.write_text(yaml.safe_dump(whole))
    assert shown("us-east-0", "--context", "here") == ["one", "two"]
    remedy = "give the folder of a run, or --context, or set KUBECONFIG"
    assert remedy in refusal("us-east-0")


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        ("2026-01-01T00:00:09.5", 32),
        ("2026-01-01T00:00:09.123456789", 32),
        ("2026-01-01T02:00:09.5+02:00", 32),
        ("2026-01-01T00:00:45", 1),
    ],
)
def test_lines_are_asked_for_since_the_last_one_whatever_the_zone_of_a_node(
    monkeypatch: pytest.MonkeyPatch, moment: str, seconds: int
) -> None:
    now = 1_767_225_640.0  # 2026-01-01T00:00:40Z
    monkeypatch.setattr("time.time", lambda: now)
    assert pod_logs._seconds_since(moment) == seconds


def test_a_slow_reader_fills_no_memory(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "AHEAD_LINES_MAX", 5)
    monkeypatch.setattr(pod_logs, "LOOK_SECONDS", 0.05)
    written = [f"line {number}" for number in range(40)]
    add(cluster, "tiny-us-east-0", "learner", *written)
    source = pod_logs.connect("tiny", "", "")
    following = source.lines("us-east-0", tail=None, follow=True)
    assert next(following)[1] == "line 0"
    threading.Event().wait(0.2)  # in which all could be read
    assert source.seen["uid-tiny-us-east-0"] < cluster.logs["tiny-us-east-0"][20]
    assert [next(following)[1] for _ in written[1:]] == written[1:]


def test_a_follower_is_refused_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "LOOK_SECONDS", 0.05)
    fill(cluster)
    cluster.refused["/log"] = (403, "pods/log is forbidden")
    following = pod_logs.connect("tiny", "", "").lines("us-east-0", tail=None, follow=True)
    assert next(following) == ("us-east-0", "(no log: pods/log is forbidden)")
    threading.Timer(0.3, cluster.objects.clear).start()
    assert list(following) == []


def test_following_shows_what_comes_once_through_restarts_and_ends_with_the_pods(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "LOOK_SECONDS", 0.05)
    fill(cluster)
    following = pod_logs.connect("tiny", "", "").lines("us-east-0", tail=1, follow=True)
    assert next(following) == ("us-east-0", "two")  # and the stream has ended
    cluster.logs["tiny-us-east-0"].append("2026-01-01T00:00:09.5Z started again")
    assert next(following) == ("us-east-0", "started again")
    cluster.refused[""] = (500, "")  # for a while, as when the API server is started again
    threading.Timer(0.2, cluster.refused.clear).start()
    cluster.logs["tiny-us-east-0"].append("2026-01-01T00:00:10.5Z after it")
    assert next(following) == ("us-east-0", "after it")
    cluster.objects.clear()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(list, following).result(SECONDS_MAX) == []
