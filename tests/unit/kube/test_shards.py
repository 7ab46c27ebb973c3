"""`atoll export JOB`: where the shards are, from what a shard's pod was started with."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace as Of
from typing import Any

import pytest
from kubernetes import client
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.kube import shards
from atoll_operator.kube.plan.pods import RUN_VOLUME
from atoll_protos.errors import SpecError


def pod(
    name: str,
    *,
    run_volume: str = RUN_VOLUME,
    endpoints: str = "s-0:7000,s-1:7000",
    phase: str = "Running",
) -> Of:
    variables = [Of(name="OTHER", value=None), Of(name="ATOLL_ENDPOINTS", value=endpoints)]
    volumes = [
        Of(name="data", config_map=None),
        Of(name=run_volume, config_map=Of(name="tiny-run-1")),
    ]
    containers = [Of(name="proxy", env=None), Of(name="shard", env=variables)]
    spec = Of(volumes=volumes, containers=containers)
    metadata = Of(name=name, deletion_timestamp=None)
    return Of(metadata=metadata, spec=spec, status=Of(phase=phase))


class Core:
    """The parts of the API that are asked."""

    def __init__(self, *pods: Of) -> None:
        self.pods = pods
        self.learners: tuple[Of, ...] = ()
        self.refused = 0

    def list_namespaced_pod(self, namespace: str, label_selector: str, **_: Any) -> Of:
        assert namespace == "team"
        if self.refused:
            raise client.ApiException(status=self.refused, reason="Forbidden")
        if label_selector == "atoll.dev/job=tiny,atoll.dev/role=learner":
            return Of(items=list(self.learners))
        assert label_selector == "atoll.dev/job=tiny,atoll.dev/role=shard"
        return Of(items=list(self.pods))

    def read_namespaced_config_map(self, name: str, namespace: str, **_: Any) -> Of:
        assert (name, namespace) == ("tiny-run-1", "team")
        return Of(data={"run.json": "{}"})


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    made = Core(pod("tiny-shard-1-0"), pod("tiny-shard-0-0"))
    monkeypatch.setattr(shards, "connect", lambda *_: Of(core=made, namespace="team", job="tiny"))
    return made


def test_endpoints_and_run_file_are_those_of_a_shards_pod(core: Core) -> None:
    assert shards.shards_of("tiny", "", "") == shards.Shards(
        run_file="{}",
        endpoints=["s-0:7000", "s-1:7000"],
        namespace="team",
        pod="tiny-shard-0-0",
        container="shard",
    )


def test_a_cluster_that_has_learners_alone_sends_the_person_to_the_syncers(core: Core) -> None:
    core.pods, core.learners = (), (pod("tiny-eu-west-0"),)
    with pytest.raises(SpecError, match="give its --context"):
        shards.shards_of("tiny", "", "")


def test_the_pod_is_one_that_runs(core: Core) -> None:
    core.pods = (pod("tiny-shard-0-0", phase="Pending"), pod("tiny-shard-1-0"))
    assert shards.shards_of("tiny", "", "").pod == "tiny-shard-1-0"


def test_a_job_without_shards_says_where_its_model_is(core: Core) -> None:
    core.pods = ()
    with pytest.raises(SpecError, match=r"has no shards in the namespace team.*status\.exportURL"):
        shards.shards_of("tiny", "", "")


def test_a_refusal_of_the_cluster_is_one_sentence(core: Core) -> None:
    core.refused = 403
    with pytest.raises(SpecError, match="the cluster refuses: 403 Forbidden; check"):
        shards.shards_of("tiny", "", "")


def test_what_learners_run_is_the_command_of_their_pods(core: Core) -> None:
    assert shards.commands_of_learners("tiny", "", "") == []
    containers = [Of(command=["python3", "-m"], args=["train"]), Of(command=None, args=["proxy"])]
    core.learners = (Of(spec=Of(containers=containers)),)
    assert shards.commands_of_learners("tiny", "", "") == [["python3", "-m", "train", "proxy"]]
    core.refused = 403
    with pytest.raises(SpecError, match="the cluster refuses: 403 Forbidden; check"):
        shards.commands_of_learners("tiny", "", "")


@pytest.mark.parametrize("strange", [pod("x", run_volume="other"), pod("x", endpoints="")])
def test_a_pod_of_another_version_is_named(core: Core, strange: Of) -> None:
    core.pods = (strange,)
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


@pytest.mark.usefixtures("core")
def test_the_model_comes_from_a_shards_pod_through_kubectl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = kubectl(tmp_path, monkeypatch, f"tar -c -C {model_in(tmp_path)} .")
    out = tmp_path / "here" / "model"
    arguments = ["export", "tiny", "--context", "east", "--out", str(out)]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert {each.name for each in out.iterdir()} == {
        "model.safetensors", "model.safetensors.index.json",
    }  # fmt: skip
    assert (out / "model.safetensors").stat().st_size == 100_000
    assert words.read_text().strip() == (
        "--context east -n team exec tiny-shard-0-0 -c shard -- python3 -P -m"
        " atoll_syncer.exporting --out -"
    )
    assert [each.name for each in out.parent.iterdir()] == ["model"]


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("exit 75", 75, "ended with 75"),
        ("tar -c -C {} . | head -c 20000", 75, "sent no whole export"),
        ("tar -c -C {} model.safetensors", 75, "without its index"),
        ("tar -c -C {} .; exit 1", 1, "ended with 1"),
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


@pytest.mark.usefixtures("core")
def test_a_name_with_a_namespace_is_a_jobs_even_where_a_folder_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubectl(tmp_path, monkeypatch, f"tar -c -C {model_in(tmp_path)} .")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert isinstance(
        CliRunner().invoke(cli.app, ["export", "tiny", "--out", "got"]).exception, SpecError
    )
    done = CliRunner().invoke(cli.app, ["export", "tiny", "-n", "team", "--out", "got"])
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("core")
def test_without_kubectl_shards_that_cannot_be_reached_are_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Of:
        asked.append(command)
        return Of(returncode=75)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("shutil.which", lambda _: None)
    done = CliRunner().invoke(cli.app, ["export", "tiny", "--out", str(tmp_path / "model")])
    assert done.exit_code == 75
    assert asked[0][asked[0].index("--endpoints") + 1] == "s-0:7000,s-1:7000"
    there = "kubectl -n team exec tiny-shard-0-0 -c shard -- python3 -P -m atoll_syncer.exporting"
    assert f"{there} --out - | tar -x -C FOLDER" in done.output
    assert "spec.export.everySteps" in done.output
    assert list(tmp_path.iterdir()) == [], "the copy of the run file is removed"


def test_a_folder_that_is_no_run_and_one_that_is_full_are_refused(tmp_path: Any) -> None:
    for arguments in (["export", str(tmp_path), "--out", str(tmp_path / "x")],):
        done = CliRunner().invoke(cli.app, arguments)
        assert isinstance(done.exception, SpecError)
        assert "holds no run" in str(done.exception)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli.app, ["export", "tiny", "--out", str(tmp_path)])
    assert "is not empty" in str(done.exception)


def test_the_node_of_a_learner_of_several_hosts_is_its_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on(process: str, node: str, learner: str = "") -> Of:
        return Of(process=process, node=node, learner=learner)

    found = [
        on("shard-0", "n0"),
        on("us-0-0", "n1", "us-0"),
        on("us-0-1", "n2", "us-0"),
        on("us-1-0", "n3", "us-1"),
        on("us-1-1", "n3", "us-1"),
        on("us-2-0", "", "us-2"),
    ]
    monkeypatch.setattr(shards, "connect", lambda *_: Of(pods=lambda: found))
    assert shards.nodes_of("tiny", "", "") == {
        "shard-0": "n0",
        "us-0": "n1 and 1 more",
        "us-1": "n3",
    }
