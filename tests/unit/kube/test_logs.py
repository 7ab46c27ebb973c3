"""`atoll logs JOB`: the pods' logs, by the names that processes have on one machine too."""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.kube import logs
from atoll_protos.errors import SpecError
from unit.kube.person_side import kubeconfig

PODS = "/api/v1/namespaces/team/pods"
SECONDS_MAX = 60.0


@dataclass
class Cluster:
    """Pods and what their containers have written, behind the API of Kubernetes."""

    pods: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[str, list[str]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    refusal: int = 0
    log_refusal: int = 0

    def add(self, name: str, role: str, *written: str, **labels: str) -> None:
        """A pod whose container has written these lines; none: it waits for its image."""
        state = {"running": {}} if written else {"waiting": {"reason": "ErrImagePull"}}
        status = {"name": "main", "state": state, "image": "", "imageID": "", "ready": False}
        metadata = {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"atoll.dev/job": "tiny", "atoll.dev/role": role, **labels},
        }
        spec = {"containers": [{"name": "main"}]}
        statuses = [{**status, "restartCount": 0}]
        self.pods.append(
            {"metadata": metadata, "spec": spec, "status": {"containerStatuses": statuses}}
        )
        self.logs[name] = [
            f"2026-01-01T00:00:{second:02}.5Z {line}" for second, line in enumerate(written)
        ]

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, str]:
        """The HTTP status and the body."""
        self.asked.append((path, query))
        if self.refusal:
            return self.refusal, json.dumps({"message": "pods is forbidden"})
        if path == PODS:
            return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "items": self.pods})
        if self.log_refusal:
            return self.log_refusal, json.dumps({"message": "pods/log is forbidden"})
        name = path.removeprefix(f"{PODS}/").removesuffix("/log")
        if not self.logs[name]:
            return 400, json.dumps({"message": "container main is waiting to start"})
        last = int(query.get("tailLines", len(self.logs[name])))
        return 200, "\n".join(self.logs[name][-last:]) + "\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """It is the cluster of the kubeconfig, whose namespace is team."""
    found = Cluster()

    def answer(verb: str, path: str, query: dict[str, str], body: str) -> tuple[int, str]:
        assert (verb, body) == ("GET", "")
        return found.answer(path, query)

    with kubeconfig(tmp_path / "config", answer):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield found


def fill(cluster: Cluster) -> None:
    cluster.add("tiny-us-east-0", "learner", "one", "two")
    cluster.add("tiny-us-east-1", "learner")
    cluster.add("tiny-syncer-0-abc", "shard", "ready", **{"atoll.dev/shard": "0"})
    cluster.add("tiny-evaluator-abc", "evaluator", "measured")


def test_the_pods_of_a_job_are_told_apart_by_slot_shard_and_evaluator(cluster: Cluster) -> None:
    fill(cluster)
    shown = CliRunner().invoke(cli.app, ["logs", "tiny", "--tail", "1"])
    assert shown.output.splitlines() == [
        "[evaluator] measured",
        "[shard-0] ready",
        "[us-east-0] two",
        "[us-east-1] (no log: container main is waiting to start)",
    ]
    listed = next(query for path, query in cluster.asked if path == PODS)
    assert listed["labelSelector"] == "atoll.dev/job=tiny"


def test_one_process_alone_has_no_prefix(cluster: Cluster) -> None:
    fill(cluster)
    shown = CliRunner().invoke(cli.app, ["logs", "tiny", "us-east-0"])
    assert shown.output.splitlines() == ["one", "two"]
    wrong = CliRunner().invoke(cli.app, ["logs", "tiny", "us-east-7"])
    assert "it has evaluator, shard-0, us-east-0, us-east-1" in str(wrong.exception)


def test_a_slot_means_all_hosts_of_its_learner(cluster: Cluster) -> None:
    for host in (0, 1):
        slot = {"atoll.dev/slot": "us-east-0"}
        cluster.add(f"tiny-us-east-0-{host}", "learner", f"of {host}", **slot)
    cluster.add("tiny-us-east-1-0", "learner", "another", **{"atoll.dev/slot": "us-east-1"})
    shown = CliRunner().invoke(cli.app, ["logs", "tiny", "us-east-0"])
    assert shown.output.splitlines() == ["[us-east-0-0] of 0", "[us-east-0-1] of 1"]
    one = CliRunner().invoke(cli.app, ["logs", "tiny", "us-east-0-1"])
    assert one.output.splitlines() == ["of 1"]


def test_the_namespace_is_the_contexts_or_the_given_one(cluster: Cluster) -> None:
    assert logs.connect("tiny", "", "").namespace == "team"
    assert logs.connect("tiny", "", "other").namespace == "default"
    assert logs.connect("tiny", "mine", "other").namespace == "mine"
    with pytest.raises(SpecError, match=r"has no pods in the namespace team; .*kubectl get dtj"):
        list(logs.connect("tiny", "", "").lines("", tail=None, follow=False))
    cluster.refusal = 403
    with pytest.raises(SpecError, match="the cluster refuses: pods is forbidden"):
        list(logs.connect("tiny", "", "").lines("", tail=None, follow=False))


def test_a_context_is_enough_where_none_is_current(cluster: Cluster) -> None:
    fill(cluster)
    file = Path(os.environ["KUBECONFIG"])
    whole = yaml.safe_load(file.read_text())
    del whole["current-context"]
    file.write_text(yaml.safe_dump(whole))
    shown = CliRunner().invoke(cli.app, ["logs", "tiny", "us-east-0", "--context", "here"])
    assert shown.output.splitlines() == ["one", "two"]
    refused = CliRunner().invoke(cli.app, ["logs", "tiny", "us-east-0"])
    assert "give the folder of a run, or --context, or set KUBECONFIG" in str(refused.exception)


def test_a_name_with_a_namespace_is_a_jobs_even_where_a_folder_has_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny" / "logs").mkdir(parents=True)
    assert CliRunner().invoke(cli.app, ["logs", "tiny"]).output == ""
    assert "two" in CliRunner().invoke(cli.app, ["logs", "tiny", "-n", "team"]).output


def test_without_a_cluster_it_is_said_that_there_is_no_folder_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(cli.app, ["logs", "tiny"])
    assert "tiny: is no run folder, and no cluster can be asked" in str(found.exception)


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
    assert logs._seconds_since(moment) == seconds


def test_who_reads_slowly_stops_the_readers_and_fills_no_memory(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "AHEAD_LINES_MAX", 5)
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.05)
    written = [f"line {number}" for number in range(40)]
    cluster.add("tiny-us-east-0", "learner", *written)
    source = logs.connect("tiny", "", "")
    following = source.lines("us-east-0", tail=None, follow=True)
    assert next(following)[1] == "line 0"
    threading.Event().wait(0.2)  # in which all could be read
    assert source.seen["uid-tiny-us-east-0"] < cluster.logs["tiny-us-east-0"][20]
    assert [next(following)[1] for _ in written[1:]] == written[1:]


def test_a_follower_is_told_once_that_it_may_not_read_logs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.05)
    fill(cluster)
    cluster.log_refusal = 403
    following = logs.connect("tiny", "", "").lines("us-east-0", tail=None, follow=True)
    assert next(following) == ("us-east-0", "(no log: pods/log is forbidden)")
    threading.Timer(0.3, cluster.pods.clear).start()
    assert list(following) == []


def test_following_shows_what_comes_once_through_restarts_and_ends_with_the_pods(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.05)
    fill(cluster)
    following = logs.connect("tiny", "", "").lines("us-east-0", tail=1, follow=True)
    assert next(following) == ("us-east-0", "two")  # and the stream has ended
    cluster.logs["tiny-us-east-0"].append("2026-01-01T00:00:09.5Z started again")
    assert next(following) == ("us-east-0", "started again")
    cluster.refusal = 500  # for a while, as when the API server is started again
    threading.Timer(0.2, setattr, (cluster, "refusal", 0)).start()
    cluster.logs["tiny-us-east-0"].append("2026-01-01T00:00:10.5Z after it")
    assert next(following) == ("us-east-0", "after it")
    cluster.pods.clear()
    ended = threading.Event()

    def finish() -> None:
        assert list(following) == []
        ended.set()

    threading.Thread(target=finish, daemon=True).start()
    assert ended.wait(SECONDS_MAX)
