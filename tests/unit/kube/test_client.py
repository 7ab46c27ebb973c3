"""Jobs of a cluster from Python, and `atoll status JOB`, which asks by the same way."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.api.conditions import decide
from atoll_operator.api.facts import Facts, Kind, Phase
from atoll_operator.api.shown import Condition
from atoll_operator.api.status import Status
from atoll_operator.client import (
    FailedError,
    JobClient,
    NotFoundError,
    TrainingJob,
    WaitTimeoutError,
    is_there,
)
from atoll_operator.local import progress
from atoll_protos.errors import SpecError
from unit.kube.person_side import kubeconfig
from unit.local.test_progress import MANIFEST, NOW, job, reply

JOBS = "/apis/atoll.dev/v1alpha1/namespaces/team/decoupledtrainingjobs"
AN_HOUR = 3600.0


def phase(kind: Kind, reason: str, message: str = "") -> list[Condition]:
    why = Phase(kind=kind, reason=reason, message=message)
    return list(decide(Facts(phase=why, shard_states=())))


def stored(
    conditions: list[Condition] | None = None,
    *,
    name: str = "tiny",
    generation: int = 1,
    observed: int = 1,
) -> dict[str, Any]:
    """A job as the API server has it; in training, unless it is given conditions."""
    found = progress.status(job(), [reply(training=("a-0", "b-0")), reply()], NOW)
    update: dict[str, Any] = {"observed_generation": observed}
    if conditions is not None:
        update["conditions"] = conditions
    raw: dict[str, Any] = yaml.safe_load(MANIFEST)
    raw["metadata"] = {"name": name, "namespace": "team", "generation": generation}
    return raw | {"status": found.model_copy(update=update).to_object()}


@dataclass
class Jobs:
    """Jobs behind the API of Kubernetes; `before` is called with each request."""

    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def answer(self, verb: str, path: str, query: dict[str, str], body: str) -> tuple[int, str]:
        self.asked.append((verb, path))
        self.before()
        if self.refusals:
            status, said = self.refusals.pop(0)
            return status, json.dumps(said)
        if path == JOBS:
            return self._collection(verb, query, body)
        name = path.removeprefix(f"{JOBS}/")
        if name not in self.items:
            return 404, json.dumps({"message": f"{name} not found"})
        found = self.items.pop(name) if verb == "DELETE" else self.items[name]
        return 200, json.dumps(found)

    def _collection(self, verb: str, query: dict[str, str], body: str) -> tuple[int, str]:
        if verb == "POST":
            raw = json.loads(body)
            if raw["metadata"]["name"] in self.items:
                return 409, json.dumps({"message": "already exists"})
            raw["metadata"] |= {"namespace": "team", "generation": 1}
            self.items[raw["metadata"]["name"]] = raw
            return 201, json.dumps(raw)
        names = list(self.items)
        start = int(query.get("continue") or 0)
        page = names[start : start + 2]  # a server may give less than was asked for
        more = str(start + 2) if start + 2 < len(names) else ""
        return 200, json.dumps(
            {"items": [self.items[each] for each in page], "metadata": {"continue": more}}
        )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    found = Jobs()
    with kubeconfig(tmp_path / "config", found.answer):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.chdir(tmp_path)
        yield found


def test_a_job_is_created_from_text_a_mapping_or_a_file_and_read_again(
    cluster: Jobs, tmp_path: Path
) -> None:
    jobs = JobClient()
    text = MANIFEST.replace("shards: 2", "shards: 1")
    (tmp_path / "job.yaml").write_text(text)
    other = yaml.safe_load(text) | {"metadata": {"name": "other"}}
    assert jobs.create(tmp_path / "job.yaml").name == "tiny"
    assert jobs.create(other).name == "other"
    assert jobs.create(text.replace("name: tiny", "name: third")).namespace == "team"
    assert [each.name for each in jobs.list()] == ["other", "third", "tiny"]
    assert jobs.get("other").manifest["spec"] == other["spec"]
    jobs.delete("other")
    assert set(cluster.items) == {"tiny", "third"}
    with pytest.raises(NotFoundError, match="the namespace team has no such job"):
        jobs.delete("other")
    with pytest.raises(SpecError, match="tiny: is there already in the namespace team; delete"):
        jobs.create(text)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("steps: 200", "steps: 0", "spec.steps"),
        ("steps: 200", "stepz: 200", "spec.stepz"),
        ("{name: tiny}", "{name: tiny, namespace: elsewhere}", "metadata.namespace"),
        ("shards: 2", "shards: 1, storage: {type: ObjectStore}", "spec.syncer.storage.type"),
    ],
)
def test_a_manifest_that_no_cluster_accepts_is_never_sent(
    cluster: Jobs, old: str, new: str, field: str
) -> None:
    text = MANIFEST.replace("shards: 2", "shards: 1")
    text = MANIFEST if old == "shards: 2" else text
    assert old in text
    with pytest.raises(SpecError) as found:
        JobClient().create(text.replace(old, new))
    assert found.value.field == field
    assert cluster.asked == []


def test_what_the_api_server_refuses_is_told_with_its_field(cluster: Jobs) -> None:
    said = {"message": "it is invalid", "details": {"causes": [{"field": "spec.regions"}]}}
    cluster.refusals = [(422, said), (403, {"message": "you may not"})]
    with pytest.raises(SpecError, match=r"spec\.regions: it is invalid; change it"):
        JobClient().get("tiny")
    with pytest.raises(SpecError, match="tiny: the cluster refuses: you may not; check"):
        JobClient().get("tiny")


def test_a_wait_ends_when_the_condition_is_true_and_bears_a_server_that_is_away(
    cluster: Jobs,
) -> None:
    cluster.items["tiny"] = stored()
    cluster.refusals = [(503, {"message": "starting"}), (429, {"message": "too many"})]

    def then_it_completes() -> None:
        if len(cluster.asked) == 4:
            done = phase(Kind.COMPLETE, "Trained", "trained to step 200")
            cluster.items["tiny"] = stored(done)

    cluster.before = then_it_completes
    found = JobClient().wait_for("tiny", timeout_seconds=60, look_seconds=0.01)
    assert found.state == "Complete"
    assert len(cluster.asked) == 4
    reached = JobClient().wait_for("tiny", lambda each: bool(each.status.progress))
    assert reached.status.progress is not None


def test_a_wait_that_is_over_says_how_the_job_stands(cluster: Jobs) -> None:
    cluster.items["tiny"] = stored()
    with pytest.raises(WaitTimeoutError, match=r"tiny: is not Complete after 0 s: it is Training;"):
        JobClient().wait_for("tiny", timeout_seconds=0)
    with pytest.raises(SpecError, match="condition: there is no Done; use Accepted, "):
        JobClient().wait_for("tiny", "Done")
    with pytest.raises(NotFoundError):
        JobClient().wait_for("other")


def seen(
    conditions: list[Condition] | None, *, generation: int = 1, observed: int = 1
) -> TrainingJob:
    return TrainingJob.read(stored(conditions, generation=generation, observed=observed))


FAILED = phase(Kind.FAILED, "StoreLost", "shard 1 has lost its state")
COMPLETE = phase(Kind.COMPLETE, "Trained")
REJECTED = phase(Kind.REJECTED, "Invalid", "spec.steps: must be at least 1")


@pytest.mark.parametrize(
    ("conditions", "wanted", "said", "reason"),
    [
        (FAILED, "Complete", "tiny: has become Failed: StoreLost: shard 1 has lost", "StoreLost"),
        (COMPLETE, "Suspended", "tiny: has become Complete: Trained", "Trained"),
        (REJECTED, "Ready", "tiny: is not accepted: Invalid: spec.steps: must be", "Invalid"),
    ],
)
def test_what_a_job_cannot_become_any_more_ends_the_wait_with_reason_and_remedy(
    conditions: list[Condition], wanted: str, said: str, reason: str
) -> None:
    with pytest.raises(FailedError) as found:
        is_there(seen(conditions), wanted)
    assert str(found.value).startswith(said)
    assert found.value.reason == reason
    assert found.value.remedy


def test_what_was_said_of_an_earlier_manifest_ends_no_wait_but_complete_does() -> None:
    assert not is_there(seen(FAILED, generation=2), "Complete")
    assert not is_there(seen(None, generation=2), "Ready")
    assert is_there(seen(COMPLETE, generation=2), "Complete")
    assert is_there(seen(FAILED), "Failed")
    assert is_there(seen(None), "Ready")


def status_of(cluster: Jobs, raw: dict[str, Any], *options: str) -> str:
    cluster.items["tiny"] = raw
    found = CliRunner().invoke(cli.app, ["status", "tiny", *options])
    assert found.exit_code == 0, found.output
    return found.output


def test_the_status_of_a_job_is_told_in_the_words_of_a_run_folder(
    cluster: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = stored()
    at = Status.read(raw["status"]).progress
    assert at is not None
    began = time.mktime(time.strptime(at.last_updated_time, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    monkeypatch.setattr(time, "time", lambda: began + 5)
    assert status_of(cluster, raw).splitlines() == [
        "tiny: Training, step 50 of 200 (25%), about 15 s left",
        "  loss 2.0000, 800 tokens",
        "  learners 2/3 (a 1/2, b 1/1), shards 2/2",
        "  Degraded: 1 of 3 learners are not in training: a-1",
    ]
    monkeypatch.setattr(time, "time", lambda: began + AN_HOUR)
    assert "the operator has written no status for 60 min" in status_of(cluster, raw)
    assert json.loads(status_of(cluster, raw, "--json")) == raw["status"]


def test_a_job_that_no_operator_has_looked_at_is_told_so(cluster: Jobs) -> None:
    new = stored()
    del new["status"]
    assert "no operator has looked at it yet" in status_of(cluster, new)
    edited = stored(FAILED, generation=2)
    assert "has not looked at the last change" in status_of(cluster, edited)


def test_a_name_with_a_namespace_or_context_is_a_jobs_also_where_a_folder_has_it(
    cluster: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/run.json").write_text("{}")
    here = CliRunner().invoke(cli.app, ["status", "tiny"])
    assert "has no status.json" in str(here.exception)
    assert "tiny: Training" in status_of(cluster, stored(), "-n", "team")
    assert cluster.asked
    other = CliRunner().invoke(cli.app, ["status", "tiny", "--context", "other"])
    assert "the namespace default has no such job" in str(other.exception)


def test_without_a_cluster_the_kubeconfig_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(SpecError, match=r"kubeconfig: no cluster can be asked .* set KUBECONFIG"):
        JobClient()


def test_a_name_that_is_no_folder_is_named_where_there_is_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    said = str(CliRunner().invoke(cli.app, ["status", "tiny"]).exception)
    assert said.startswith("tiny: is no run folder, and no cluster can be asked")
    assert said.endswith("give the folder of a run, or --context, or set KUBECONFIG")
    asked = ["credentials", "tiny", "--region", "eu-west"]
    said = str(CliRunner().invoke(cli.app, asked).exception)
    assert said.startswith("kubeconfig: no cluster can be asked")


# ---------------------------------------------------------------- what a shell offers


def offers(typed: str) -> list[str]:
    """What bash is offered for the last of these words."""
    count = str(len(typed.split(" ")) - 1)
    asked = {"_ATOLL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": count}
    return CliRunner().invoke(cli.app, env=asked, prog_name="atoll").output.split()


@pytest.mark.parametrize("verb", ["status", "top", "logs", "plot", "export", "credentials"])
def test_a_shell_offers_the_names_of_jobs(verb: str, cluster: Jobs) -> None:
    cluster.items = {name: stored(name=name) for name in ("tiny", "tidy", "large")}
    assert offers(f"atoll {verb} ti") == ["tidy", "tiny"]
    assert offers(f"atoll {verb} ") == ["large", "tidy", "tiny"]


def test_a_shell_asks_the_cluster_that_was_named_and_nobody_about_a_path(cluster: Jobs) -> None:
    cluster.items = {"tiny": stored()}
    assert offers("atoll status -n other ti") == []
    assert cluster.asked == [("GET", JOBS.replace("/team/", "/other/"))]
    assert offers("atoll status ./ti") == []
    assert len(cluster.asked) == 1


def test_a_shell_offers_run_folders_too_and_needs_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "runs/tiny-1", "runs/tiny-2"):
        (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / "runs/other").mkdir()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    assert offers("atoll status ") == ["here", "runs/tiny-1", "runs/tiny-2"]
    assert offers("atoll status runs/t") == ["runs/tiny-1", "runs/tiny-2"]
    assert offers("atoll credentials ") == []


def test_a_cluster_that_refuses_or_does_not_answer_offers_nothing(cluster: Jobs) -> None:
    cluster.refusals = [(403, {"message": "you cannot list"})]
    assert offers("atoll status t") == []
