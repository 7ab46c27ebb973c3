"""`atoll export JOB`: a shard's pod from which the shards are reachable."""

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.client import job_client as shards
from atoll_protos.errors import SpecError
from unit.kube.person_side import Cluster


def shard(
    cluster: Cluster, name: str, variable: str = "ATOLL_ENDPOINTS", **labels: str
) -> dict[str, Any]:
    """A shard's pod, which has a sidecar."""
    pod = cluster.add_pod(name, "shard", **labels)
    own = {"name": "shard", "env": [{"name": variable}]}
    pod["spec"]["containers"] = [{"name": "proxy"}, own]
    return pod


@pytest.fixture
def job(cluster: Cluster) -> Cluster:
    """A job of two shards."""
    shard(cluster, "tiny-shard-1-0")
    shard(cluster, "tiny-shard-0-0")
    return cluster


def test_the_pod_is_one_that_runs(job: Cluster) -> None:
    shard(job, "tiny-shard-0-0")["status"]["phase"] = "Pending"
    assert shards.shards_of("tiny", "", "") == shards.Shards(
        namespace="team", pod="tiny-shard-1-0", container="shard"
    )


def test_of_two_pods_of_shard_0_it_is_the_one_that_serves(cluster: Cluster) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    for name, number, serves in (("x-1", "1", True), ("x-0", "0", False), ("x-0-b", "0", True)):
        pod = shard(cluster, name, **{"atoll.dev/shard": number})
        pod["status"] |= {"conditions": ready} if serves else {}
    assert shards.shards_of("tiny", "", "").pod == "x-0-b"


def test_where_no_shard_is_the_person_is_told_where_the_model_or_the_syncer_is(
    cluster: Cluster,
) -> None:
    with pytest.raises(SpecError, match=r"has no shards in the namespace team.*status\.exportURL"):
        shards.shards_of("tiny", "", "")
    cluster.add_pod("tiny-eu-west-0", "learner")
    with pytest.raises(SpecError, match="give its --context"):
        shards.shards_of("tiny", "", "")
    cluster.refused[""] = (403, "no")
    with pytest.raises(SpecError, match="the cluster refuses: no; check"):
        shards.shards_of("tiny", "", "")


def test_a_pod_of_another_version_is_named(job: Cluster) -> None:
    shard(job, "tiny-shard-0-0", variable="OTHER")
    with pytest.raises(SpecError, match="use the atoll of the operator's version"):
        shards.shards_of("tiny", "", "")


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


@pytest.mark.usefixtures("job")
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


@pytest.mark.usefixtures("job")
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
    assert shards.nodes_of("tiny", "", "") == {
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
