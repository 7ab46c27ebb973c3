"""Jobs of a cluster, and a shard's pod from which shards are reached, as the commands read them."""

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
from atoll_operator.client.job_client import Shards, nodes_of, shards_of
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


# ---------------------------------------------------------------- shards, and the model


def shard(
    cluster: Cluster, name: str, variable: str = "ATOLL_ENDPOINTS", **labels: str
) -> dict[str, Any]:
    """A shard's pod, which has a sidecar."""
    pod = cluster.add_pod(name, "shard", **labels)
    own = {"name": "shard", "env": [{"name": variable}]}
    pod["spec"]["containers"] = [{"name": "proxy"}, own]
    return pod


@pytest.fixture
def sharded(cluster: Cluster) -> Cluster:
    """A job of two shards."""
    shard(cluster, "tiny-shard-1-0")
    shard(cluster, "tiny-shard-0-0")
    return cluster


def test_the_pod_is_one_that_runs(sharded: Cluster) -> None:
    shard(sharded, "tiny-shard-0-0")["status"]["phase"] = "Pending"
    assert shards_of("tiny", "", "") == Shards(
        namespace="team", pod="tiny-shard-1-0", container="shard"
    )


def test_of_two_pods_of_shard_0_it_is_the_one_that_serves(cluster: Cluster) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    for name, number, serves in (("x-1", "1", True), ("x-0", "0", False), ("x-0-b", "0", True)):
        pod = shard(cluster, name, **{"atoll.dev/shard": number})
        pod["status"] |= {"conditions": ready} if serves else {}
    assert shards_of("tiny", "", "").pod == "x-0-b"


def test_where_no_shard_is_the_person_is_told_where_the_model_or_the_syncer_is(
    cluster: Cluster,
) -> None:
    with pytest.raises(SpecError, match=r"has no shards in the namespace team.*status\.exportURL"):
        shards_of("tiny", "", "")
    cluster.add_pod("tiny-eu-west-0", "learner")
    with pytest.raises(SpecError, match="give its --context"):
        shards_of("tiny", "", "")
    cluster.refused[""] = (403, "no")
    with pytest.raises(SpecError, match="the cluster refuses: no; check"):
        shards_of("tiny", "", "")


def test_a_pod_of_another_version_is_named(sharded: Cluster) -> None:
    shard(sharded, "tiny-shard-0-0", variable="OTHER")
    with pytest.raises(SpecError, match="use the atoll of the operator's version"):
        shards_of("tiny", "", "")


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A kubectl that notes its words and runs this shell; returns the file with the words."""
    program, words = folder / "bin" / "kubectl", folder / "words"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {words}\n{body}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return words


def model_in(folder: Path) -> Path:
    (folder / "model").mkdir()
    (folder / "model/model.safetensors").write_bytes(b"x" * 100_000)
    (folder / "model/model.safetensors.index.json").write_text("{}")
    return folder / "model"


@pytest.mark.usefixtures("sharded")
def test_the_model_comes_from_a_shards_pod_through_kubectl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = kubectl(tmp_path, monkeypatch, f"tar -c -C {model_in(tmp_path)} .")
    out = tmp_path / "here" / "model"
    (tmp_path / "tiny").mkdir()  # a name with a context is a job's
    arguments = ["export", "tiny", "--context", "here", "--out", str(out)]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert {each.name for each in out.iterdir()} == {
        "model.safetensors", "model.safetensors.index.json",
    }  # fmt: skip
    assert (out / "model.safetensors").stat().st_size == 100_000
    assert words.read_text().strip() == (
        "--context here -n team exec tiny-shard-0-0 -c shard -- python3 -P -m"
        " atoll_syncer.edges.exporting --out -"
    )
    assert [each.name for each in out.parent.iterdir()] == ["model"]


@pytest.mark.usefixtures("sharded")
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("exit 75", 75, "ended with 75"),
        ("tar -c -C {} . | head -c 20000", 75, "sent no whole export"),
        ("tar -c -C {} model.safetensors", 75, "without its index"),
        ("tar -c -C {} .; exit 1", 1, "ended with 1"),
        ("tar -c -P --transform s,^,../../, -C {} model.safetensors", 75, "is not below it"),
    ],
)
def test_a_model_that_came_in_part_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, code: int, said: str
) -> None:
    kubectl(tmp_path, monkeypatch, body.format(model_in(tmp_path)))
    out = tmp_path / "here" / "model"
    done = CliRunner().invoke(cli.app, ["export", "tiny", "--out", str(out)])
    assert done.exit_code == code
    assert said in done.output
    assert list(out.parent.iterdir()) == []


def test_a_folder_that_is_no_run_and_one_that_is_full_are_refused(tmp_path: Any) -> None:
    for arguments in (["export", str(tmp_path), "--out", str(tmp_path / "x")],):
        done = CliRunner().invoke(cli.app, arguments)
        assert isinstance(done.exception, SpecError)
        assert "holds no run" in str(done.exception)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli.app, ["export", "tiny", "--out", str(tmp_path)])
    assert "is not empty" in str(done.exception)


def test_nodes_begin_with_that_of_the_first_host_or_of_who_serves(cluster: Cluster) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    cluster.add_pod("tiny-syncer-0-x", "shard", "n0", **{"atoll.dev/shard": "0"})
    cluster.add_pod("tiny-syncer-1-x", "shard", "n1", **{"atoll.dev/shard": "1"})
    serving = cluster.add_pod("tiny-syncer-1-b", "shard", "n2", **{"atoll.dev/shard": "1"})
    serving["status"] |= ready
    for slot, *nodes in (("us-0", "n1", "n2"), ("us-1", "n3", "n3"), ("us-2", "")):
        for host, node in enumerate(nodes):
            cluster.add_pod(f"tiny-{slot}-{host}", "learner", node, **{"atoll.dev/slot": slot})
    assert nodes_of("tiny", "", "") == {
        "shard-0": "n0",
        "shard-1": "n2",
        "us-0": "n1 and 1 more",
        "us-1": "n3",
    }


@pytest.mark.parametrize(
    ("url", "fetch"),
    [
        ("s3://bucket/a/x", "aws s3 cp --recursive s3://bucket/a/x"),
        ("gs://bucket/x", "gcloud storage cp --recursive gs://bucket/x"),
        (
            "az://account/container/x",
            "azcopy copy --recursive https://account.blob.core.windows.net/container/x",
        ),
        ("file:///exports/x", ""),
    ],
)
def test_of_a_complete_job_it_says_in_which_bucket_the_model_is(
    cluster: Cluster, url: str, fetch: str
) -> None:
    complete = {"type": "Complete", "status": "True", "reason": "Complete", "message": ""}
    status = {"exportURL": url, "conditions": [complete | {"lastTransitionTime": ""}]}
    job = cluster.put("Job", "tiny", {"spec": {}, "status": status})
    command = ["export", "tiny", "-n", "team", "--out", "model"]
    said = str(CliRunner().invoke(cli.app, command).exception)
    folder = Path("model").resolve()
    if fetch:
        assert said == f"tiny: is complete, and its model is in {url}; fetch it: {fetch} {folder}"
    else:
        assert "its status.exportURL says where" in said
    job["status"]["conditions"] = []
    assert "has no shards" in str(CliRunner().invoke(cli.app, command).exception)
