"""Jobs of a cluster as `atoll checkpoint` and the completion of a shell read them."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from atoll_operator import cli
from atoll_operator.client import JobClient
from atoll_operator.local import local_status
from atoll_protos.errors import AwayError, SpecError
from unit.kube.person_side import COLLECTIONS, Cluster
from unit.local.test_local_status import MANIFEST, NOW, job, reply

JOBS = COLLECTIONS["Job"]
TINY = f"{JOBS}/tiny"


def stored(*, name: str = "tiny") -> dict[str, Any]:
    """A job in training, as the operator has seen it."""
    found = local_status.status(job(), [reply(training=("a-0", "b-0")), reply()], NOW)
    raw: dict[str, Any] = yaml.safe_load(MANIFEST)
    raw["metadata"] = {"name": name, "namespace": "team", "generation": 1}
    return raw | {"status": found.model_copy(update={"observed_generation": 1}).to_object()}


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
    monkeypatch.setattr("atoll_operator.cli.lifecycle.time", slept)
    assert CliRunner().invoke(cli.app, ["checkpoint", "tiny"]).output == "s3://b/step-51\n"


def test_a_refusal_is_in_the_words_of_the_api_server_and_one_that_passes_says_so(
    cluster: Cluster,
) -> None:
    no_right = 'pods is forbidden: User "me" cannot list resource "pods"'
    cluster.refusals = [(403, {"message": "no"}), (403, {"message": no_right})]
    for words in ("no; check", f"{no_right}; ask for that right"):
        with pytest.raises(SpecError, match=f"tiny: the cluster refuses: {words}"):
            JobClient().get("tiny")
    for status in (503, 429):
        cluster.refusals = [(status, {"message": "busy"})]
        with pytest.raises(AwayError, match=f"tiny: the cluster answers {status}: busy; try again"):
            JobClient().get("tiny")


def atoll(*words: str) -> Result:
    return CliRunner().invoke(cli.app, words)


def test_a_name_with_a_namespace_or_context_is_no_folders(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/run.json").write_text("{}")
    assert "has no status.json" in str(atoll("checkpoint", "tiny").exception)
    assert not cluster.asked
    cluster.objects[TINY] = stored()
    assert "spec.checkpoint.url" in str(atoll("checkpoint", "tiny", "-n", "team").exception)
    other = atoll("checkpoint", "tiny", "--context", "other")
    assert "not found in the namespace default; see kubectl get dtj" in str(other.exception)


def test_a_context_is_enough_where_none_is_current(cluster: Cluster) -> None:
    file = Path(os.environ["KUBECONFIG"])
    whole = yaml.safe_load(file.read_text())
    del whole["current-context"]
    file.write_text(yaml.safe_dump(whole))
    cluster.objects[TINY] = stored()
    assert "spec.checkpoint.url" in str(atoll("checkpoint", "tiny", "--context", "here").exception)


def test_neither_a_folder_nor_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(SpecError, match=r"kubeconfig: no cluster can be asked .* set KUBECONFIG"):
        JobClient()
    said = str(atoll("top", "tiny").exception)
    assert said.startswith(("kubectl: ", "tiny: is not a run folder, and no cluster can be asked"))
    said = str(atoll("credentials", "tiny", "--region", "eu-west").exception)
    assert said.startswith("kubeconfig: no cluster can be asked")


# ---------------------------------------------------------------- what a shell offers


def offers(typed: str) -> list[str]:
    """What bash is offered for the last of these words."""
    count = str(len(typed.split(" ")) - 1)
    asked = {"_ATOLL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": count}
    return CliRunner().invoke(cli.app, env=asked, prog_name="atoll").output.split()


@pytest.mark.parametrize("verb", ["top", "export", "checkpoint", "credentials"])
def test_a_shell_offers_the_names_of_jobs(verb: str, cluster: Cluster) -> None:
    cluster.objects = {f"{JOBS}/{name}": stored(name=name) for name in ("tiny", "tidy", "large")}
    assert offers(f"atoll {verb} ti") == ["tidy", "tiny"]
    assert offers(f"atoll {verb} ") == ["large", "tidy", "tiny"]


def test_a_shell_asks_the_cluster_that_was_named_and_nobody_about_a_path(cluster: Cluster) -> None:
    cluster.objects = {TINY: stored()}
    assert offers("atoll top -n other ti") == []
    assert cluster.asked == [("GET", JOBS.replace("/team/", "/other/"))]
    assert offers("atoll top ./ti") == []
    assert len(cluster.asked) == 1
    cluster.refusals = [(403, {"message": "you cannot list"})]
    assert offers("atoll top t") == []


def test_a_shell_offers_run_folders_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "runs/tiny-1", "runs/tiny-2"):
        (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / "runs/other").mkdir()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    assert offers("atoll status ") == ["here", "runs/tiny-1", "runs/tiny-2"]
    for verb in ("status", "logs", "edit", "suspend", "resume", "stop"):
        assert offers(f"atoll {verb} runs/t") == ["runs/tiny-1", "runs/tiny-2"]
    assert offers("atoll credentials ") == []
