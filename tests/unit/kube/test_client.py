"""Jobs of a cluster from Python, and `atoll status JOB`, which asks by the same way."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from atoll_operator import cli
from atoll_operator.api.status.condition_facts import Facts, Phase, PhaseKind
from atoll_operator.api.status.conditions import conditions_of
from atoll_operator.api.status.job_status import Condition, Status
from atoll_operator.client import (
    FailedError,
    JobClient,
    NotFoundError,
    TrainingJob,
    WaitTimeoutError,
)
from atoll_operator.client.job_client import is_there
from atoll_operator.local.progress import local_status
from atoll_protos.errors import SpecError
from unit.kube.person_side import COLLECTIONS, Cluster
from unit.local.test_local_status import MANIFEST, NOW, job, reply

JOBS = COLLECTIONS["Job"]
TINY = f"{JOBS}/tiny"
AN_HOUR = 3600.0
ONE_SHARD = MANIFEST.replace("shards: 2", "shards: 1")


def phase(kind: PhaseKind, reason: str, message: str = "") -> list[Condition]:
    why = Phase(kind=kind, reason=reason, message=message)
    return list(conditions_of(Facts(phase=why, shard_states=())))


def stored(
    conditions: list[Condition] | None = None, *, name: str = "tiny", generation: int = 1
) -> dict[str, Any]:
    """A job of which the operator saw generation 1; in training, unless it is given conditions."""
    found = local_status.status(job(), [reply(training=("a-0", "b-0")), reply()], NOW)
    update: dict[str, Any] = {"observed_generation": 1}
    if conditions is not None:
        update["conditions"] = conditions
    raw: dict[str, Any] = yaml.safe_load(MANIFEST)
    raw["metadata"] = {"name": name, "namespace": "team", "generation": generation}
    return raw | {"status": found.model_copy(update=update).to_object()}


def test_a_job_is_created_from_text_a_mapping_or_a_file(cluster: Cluster, tmp_path: Path) -> None:
    jobs = JobClient()
    (tmp_path / "job.yaml").write_text(ONE_SHARD)
    other = yaml.safe_load(ONE_SHARD) | {"metadata": {"name": "other"}}
    assert jobs.create(tmp_path / "job.yaml").name == "tiny"
    assert jobs.create(other).name == "other"
    assert jobs.create(ONE_SHARD.replace("name: tiny", "name: third")).namespace == "team"
    assert [each.name for each in jobs.list()] == ["other", "third", "tiny"]
    assert jobs.get("other").manifest["spec"] == other["spec"]
    jobs.delete("other")
    assert cluster.objects.keys() == {TINY, f"{JOBS}/third"}
    with pytest.raises(NotFoundError, match="the namespace team has no such job"):
        jobs.delete("other")
    with pytest.raises(SpecError, match="tiny: is there already in the namespace team; delete"):
        jobs.create(ONE_SHARD)


def test_a_checkpoint_is_asked_for_by_an_annotation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(_: float) -> None:
        live = cluster.objects[TINY]
        assert live["metadata"]["annotations"] == {"atoll.dev/checkpoint": "51"}
        live["status"]["checkpoint"] = "s3://b/step-51"

    raw = cluster.put("Job", "tiny", stored())
    raw["status"] |= {"conditions": []}
    with pytest.raises(SpecError, match=r"spec.checkpoint.url: is not given"):
        CliRunner().invoke(cli.app, ["checkpoint", "tiny"], catch_exceptions=False)
    raw["spec"]["checkpoint"] = {"url": "s3://b"}
    slept = SimpleNamespace(sleep=take, monotonic=time.monotonic)
    monkeypatch.setattr("atoll_operator.cli.checkpoint.time", slept)
    assert CliRunner().invoke(cli.app, ["checkpoint", "tiny"]).output == "s3://b/step-51\n"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("steps: 200", "steps: 0", "spec.steps"),
        ("steps: 200", "stepz: 200", "spec.stepz"),
        ("{name: tiny}", "{name: tiny, namespace: elsewhere}", "metadata.namespace"),
        ("shards: 1", "shards: 1, storage: {type: Tape}", "spec.syncer.storage.type"),
    ],
)
def test_a_manifest_that_no_cluster_accepts_is_never_sent(
    cluster: Cluster, old: str, new: str, field: str
) -> None:
    assert old in ONE_SHARD
    with pytest.raises(SpecError) as found:
        JobClient().create(ONE_SHARD.replace(old, new))
    assert found.value.field == field
    assert cluster.asked == []


def test_what_the_api_server_refuses_is_told_with_its_field(cluster: Cluster) -> None:
    said = {"message": "it is invalid", "details": {"causes": [{"field": "spec.regions"}]}}
    no_right = 'pods is forbidden: User "me" cannot list resource "pods"'
    cluster.refusals = [(422, said), (403, {"message": "no"}), (403, {"message": no_right})]
    with pytest.raises(SpecError, match=r"spec\.regions: it is invalid; change it"):
        JobClient().get("tiny")
    for words in ("no; check", f"{no_right}; ask for that right"):
        with pytest.raises(SpecError, match=f"tiny: the cluster refuses: {words}"):
            JobClient().get("tiny")


def test_a_wait_ends_with_its_condition_and_bears_a_server_that_is_away(cluster: Cluster) -> None:
    cluster.objects[TINY] = stored()
    cluster.refusals = [(503, {"message": "starting"}), (429, {"message": "too many"})]

    def then_it_completes() -> None:
        if len(cluster.asked) == 4:
            done = phase(PhaseKind.COMPLETE, "Trained", "trained to step 200")
            cluster.objects[TINY] = stored(done)

    cluster.before = then_it_completes
    found = JobClient().wait_for("tiny", timeout_seconds=60, look_seconds=0.01)
    assert found.state == "Complete"
    assert len(cluster.asked) == 4
    reached = JobClient().wait_for("tiny", lambda each: bool(each.status.progress))
    assert reached.status.progress is not None


def test_a_wait_that_is_over_says_how_the_job_stands(cluster: Cluster) -> None:
    cluster.objects[TINY] = stored()
    with pytest.raises(WaitTimeoutError, match=r"tiny: is not Complete after 0 s: it is Training;"):
        JobClient().wait_for("tiny", timeout_seconds=0)
    with pytest.raises(SpecError, match="condition: there is no Done; use Accepted, "):
        JobClient().wait_for("tiny", "Done")
    with pytest.raises(NotFoundError):
        JobClient().wait_for("other")


def seen(conditions: list[Condition] | None, generation: int = 1) -> TrainingJob:
    return TrainingJob.read(stored(conditions, generation=generation))


FAILED = phase(PhaseKind.FAILED, "StoreLost", "shard 1 has lost its state")
COMPLETE = phase(PhaseKind.COMPLETE, "Trained")
REJECTED = phase(PhaseKind.REJECTED, "Invalid", "spec.steps: must be at least 1")


@pytest.mark.parametrize(
    ("conditions", "wanted", "reason", "said"),
    [
        (FAILED, "Complete", "StoreLost", "tiny: has become Failed: StoreLost: shard 1 has lost"),
        (COMPLETE, "Suspended", "Trained", "tiny: has become Complete: Trained"),
        (REJECTED, "Ready", "Invalid", "tiny: is not accepted: Invalid: spec.steps: must be"),
    ],
)
def test_what_a_job_cannot_become_any_more_ends_the_wait_with_reason_and_remedy(
    conditions: list[Condition], wanted: str, reason: str, said: str
) -> None:
    with pytest.raises(FailedError) as found:
        is_there(seen(conditions), wanted)
    assert str(found.value).startswith(said)
    assert found.value.reason == reason
    assert found.value.remedy


@pytest.mark.parametrize(
    ("conditions", "generation", "wanted", "there"),
    [
        (FAILED, 2, "Complete", False),  # said of an earlier manifest
        (None, 2, "Ready", False),
        (COMPLETE, 2, "Complete", True),
        (FAILED, 1, "Failed", True),
        (None, 1, "Ready", True),
    ],
)
def test_what_was_said_of_an_earlier_manifest_ends_no_wait_but_complete_does(
    conditions: list[Condition] | None, generation: int, wanted: str, there: bool
) -> None:
    assert is_there(seen(conditions, generation), wanted) == there


def atoll(*words: str) -> Result:
    return CliRunner().invoke(cli.app, words)


def status_of(cluster: Cluster, raw: dict[str, Any], *options: str) -> str:
    cluster.objects[TINY] = raw
    found = atoll("status", "tiny", *options)
    assert found.exit_code == 0, found.output
    return found.output


def test_a_status_is_told_as_of_a_run_folder(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
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


def test_a_job_that_no_operator_has_looked_at_is_told_so(cluster: Cluster) -> None:
    new = stored()
    del new["status"]
    assert "no operator has looked at it yet" in status_of(cluster, new)
    edited = stored(FAILED, generation=2)
    assert "has not looked at the last change" in status_of(cluster, edited)


def test_a_job_is_suspended_resumed_and_deleted_by_its_name(cluster: Cluster) -> None:
    cluster.objects = {TINY: stored()}
    for verb, wanted in (("suspend", True), ("resume", False)):
        done = atoll(verb, "tiny")
        assert (done.exit_code, done.output[:6]) == (0, "tiny: "), done.output
        assert cluster.objects[TINY]["spec"]["suspend"] is wanted
    assert atoll("delete", "tiny", "-n", "team").output == "tiny: deleted\n"
    assert cluster.objects == {}
    gone = atoll("resume", "tiny")
    assert isinstance(gone.exception, NotFoundError)
    folder = atoll("delete", "runs/tiny")
    assert isinstance(folder.exception, SpecError)
    assert "Ctrl-C" in folder.exception.remedy


def test_a_job_is_edited_and_stopped_by_its_name(cluster: Cluster) -> None:
    raw = cluster.put("Job", "tiny", stored())
    raw["spec"]["syncer"]["ofALaterVersion"] = 1
    done = atoll("edit", "tiny", "--learners", "b=3", "--steps", "500")
    said = done.output.splitlines()
    assert said == ["tiny: b has 3 learners, it had 1", "tiny: it is 500 steps long, it was 200"]
    spec = cluster.objects[TINY]["spec"]
    regions = [{"name": "a", "learners": 2}, {"name": "b", "learners": 3}]
    assert (spec["steps"], spec["regions"], spec["syncer"]["ofALaterVersion"]) == (500, regions, 1)
    asked = len(cluster.asked)
    wrong = atoll("edit", "tiny", "--learners", "a=0", "--learners", "b=0").exception
    assert str(wrong).startswith("spec.sync.quorum: must not be more than")
    assert [verb for verb, _ in cluster.asked[asked:]] == ["GET"]
    assert "will end" in atoll("stop", "tiny").output
    spec = cluster.objects[TINY]["spec"]
    assert (spec["steps"], spec["suspend"]) == (50, False)
    before = JobClient().get("tiny")
    cluster.objects[TINY]["metadata"]["resourceVersion"] = "2"
    with pytest.raises(SpecError, match="tiny: has changed meanwhile; do it again"):
        JobClient().edit(before, {"steps": 9})


def test_a_name_with_a_namespace_or_context_is_no_folders(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/run.json").write_text("{}")
    here = atoll("status", "tiny")
    assert "has no status.json" in str(here.exception)
    assert "tiny: Training" in status_of(cluster, stored(), "-n", "team")
    assert cluster.asked
    other = atoll("status", "tiny", "--context", "other")
    assert "the namespace default has no such job" in str(other.exception)


def test_neither_a_folder_nor_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(SpecError, match=r"kubeconfig: no cluster can be asked .* set KUBECONFIG"):
        JobClient()
    said = str(atoll("status", "tiny").exception)
    assert said.startswith("tiny: is not a run folder, and no cluster can be asked")
    assert said.endswith("give the folder of a run, or --context, or set KUBECONFIG")
    said = str(atoll("credentials", "tiny", "--region", "eu-west").exception)
    assert said.startswith("kubeconfig: no cluster can be asked")


# ---------------------------------------------------------------- what a shell offers


def offers(typed: str) -> list[str]:
    """What bash is offered for the last of these words."""
    count = str(len(typed.split(" ")) - 1)
    asked = {"_ATOLL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": count}
    return CliRunner().invoke(cli.app, env=asked, prog_name="atoll").output.split()


@pytest.mark.parametrize(
    "verb", ["status", "top", "logs", "plot", "export", "credentials", "suspend", "delete"]
)
def test_a_shell_offers_the_names_of_jobs(verb: str, cluster: Cluster) -> None:
    cluster.objects = {f"{JOBS}/{name}": stored(name=name) for name in ("tiny", "tidy", "large")}
    assert offers(f"atoll {verb} ti") == ["tidy", "tiny"]
    assert offers(f"atoll {verb} ") == ["large", "tidy", "tiny"]


def test_a_shell_asks_the_cluster_that_was_named_and_nobody_about_a_path(cluster: Cluster) -> None:
    cluster.objects = {TINY: stored()}
    assert offers("atoll status -n other ti") == []
    assert cluster.asked == [("GET", JOBS.replace("/team/", "/other/"))]
    assert offers("atoll status ./ti") == []
    assert len(cluster.asked) == 1
    cluster.refusals = [(403, {"message": "you cannot list"})]
    assert offers("atoll status t") == []


def test_a_shell_offers_run_folders_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "runs/tiny-1", "runs/tiny-2"):
        (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / "runs/other").mkdir()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    assert offers("atoll status ") == ["here", "runs/tiny-1", "runs/tiny-2"]
    assert offers("atoll status runs/t") == ["runs/tiny-1", "runs/tiny-2"]
    assert offers("atoll credentials ") == []
