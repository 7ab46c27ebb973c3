"""The manifest of a script, and what a run folder keeps of any manifest."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_operator.api.job.parsing import document_in, from_object, parse
from atoll_operator.local import run_manifest
from atoll_operator.local.process_plan import Planned, processes
from atoll_operator.local.run_manifest import Document
from atoll_protos.errors import SpecError

CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: models}\n"
JOB = """\
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: tiny}
spec:
  steps: 600   # the length
  regions: [{name: us, podOverrides: {args: [--layers, '3']}}, {name: eu}]
"""
HERE = Path("/here")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "Train_Me.py"
    path.write_text("")
    return path


def made(
    script: Path,
    *arguments: str,
    learners: int | None = None,
    steps: int | None = 400,
    regions: tuple[str, ...] = (),
) -> Document:
    return run_manifest.of_script(
        script, arguments, learners=learners, steps=steps, regions=regions
    )


def test_a_script_becomes_a_manifest_with_the_defaults_of_the_crd(script: Path) -> None:
    job = from_object(made(script, "--lr", "1e-3", learners=3))
    assert (job.name, job.spec.steps) == ("train-me", 400)
    assert job.spec.slots == ("local-0", "local-1", "local-2")
    container = job.spec.learner.template.container
    assert (container.command, container.args) == (["python", str(script)], ["--lr", "1e-3"])
    assert job.spec.sync == parse(JOB).spec.sync
    names = {"01_Train": "01-train", "_": "script", "a" * 29 + "_" + "b" * 40: "a" * 29}
    for stem, name in names.items():
        other = script.with_name(f"{stem}.py")
        other.touch()
        assert from_object(made(other)).name == name


@pytest.mark.parametrize(
    ("learners", "regions", "slots"),
    [
        (None, (), ("local-0", "local-1")),
        (None, ("us", "eu", "ap"), ("us-0", "eu-0", "ap-0")),
        (4, ("us", "eu", "ap"), ("us-0", "us-1", "eu-0", "ap-0")),
    ],
)
def test_learners_are_spread_over_the_regions_in_turn(
    learners: int | None, regions: tuple[str, ...], slots: tuple[str, ...], script: Path
) -> None:
    assert from_object(made(script, learners=learners, regions=regions)).spec.slots == slots


def test_what_a_script_lacks_is_named_with_its_remedy(script: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.py: is not there"):
        made(Path("nowhere.py"))
    with pytest.raises(SpecError, match=r"--steps: is missing; .*--steps 400"):
        made(script, steps=None)
    with pytest.raises(SpecError, match="--learners: 1 learners cannot be in 2 regions"):
        made(script, learners=1, regions=("us", "eu"))


def test_gpus_are_written_where_kubernetes_has_them() -> None:
    text = JOB.replace("{name: eu}", "{name: eu, podOverrides: {resources: {limits: {cpu: 1}}}}")
    before = document_in(text)
    changed = run_manifest.with_gpus(before, 2)
    assert container_in(changed)["resources"]["limits"] == {"nvidia.com/gpu": 2}
    own = changed["spec"]["regions"][1]["podOverrides"]["resources"]["limits"]
    assert own == {"cpu": 1, "nvidia.com/gpu": 2}
    assert before == document_in(text)
    from_object(changed)


def learners_of(document: Document) -> list[Planned]:
    planned = processes(from_object(document), Path("/out"), ("here:1",), {}, new=True)
    return [each for each in planned if each.role == "learner"]


def container_in(document: Document) -> Any:
    return document["spec"]["learner"]["template"]["spec"]["containers"][0]


def test_the_processes_of_a_learner_stay_in_the_manifest(script: Path) -> None:
    before = made(script, "--lr", "1")
    changed = run_manifest.with_processes(before, 2)
    assert before == made(script, "--lr", "1")
    command = ("atoll-worker", "launch", "--", "python", str(script), "--lr", "1")
    learners = learners_of(changed)
    assert {each.command for each in learners} == {command}
    assert {each.env["PET_NPROC_PER_NODE"] for each in learners} == {"2"}
    container = container_in(run_manifest.with_processes(changed, 3))
    assert container["env"] == [{"name": "PET_NPROC_PER_NODE", "value": "3"}]
    assert container["command"][:4] == ["atoll-worker", "launch", "--", "python"]
    train = ["python3", "-m", "atoll_worker", "bytegpt.train:main"]  # of the built-in model
    built_in = container_in(run_manifest.with_processes(document_in(JOB), 2))
    assert built_in["command"] == ["atoll-worker", "launch", "--", *train]
    assert "command" not in container_in(run_manifest.with_processes(document_in(JOB), 1))


def test_a_region_with_a_command_of_its_own_has_processes_too() -> None:
    own = "{command: [python, b.py], env: [{name: A, value: b}, {name: PET_NPROC_PER_NODE}]}"
    text = JOB.replace("{name: eu}", f"{{name: eu, podOverrides: {own}}}")
    text = text.replace("podOverrides: {args: [--layers, '3']}", "podOverrides: {command: [a]}")
    changed = run_manifest.with_processes(document_in(text), 2)
    found = {each.name: each for each in learners_of(changed)}
    assert found["us-0"].command == ("atoll-worker", "launch", "--", "a")
    assert found["eu-0"].command == ("atoll-worker", "launch", "--", "python", "b.py")
    assert {each.env["PET_NPROC_PER_NODE"] for each in found.values()} == {"2"}
    assert found["eu-0"].env["A"] == "b"


def test_relative_working_folders_are_kept_for_any_current_folder(script: Path) -> None:
    def folders(document: Document) -> set[str]:
        return {each.folder for each in learners_of(run_manifest.with_folders(document, HERE))}

    assert folders(made(script)) == {"/here"}
    container = "{name: x, command: [python, a.py], workingDir: code}"
    named = JOB + f"  learner: {{template: {{spec: {{containers: [{container}]}}}}}}\n"
    assert folders(document_in(named)) == {"/here/code"}
    assert folders(document_in(named.replace("Dir: code", "Dir: /app"))) == {"/app"}
    assert folders(document_in(JOB)) == {"/here"}  # of --data *.txt
    plain = document_in(JOB.replace(", podOverrides: {args: [--layers, '3']}", ""))
    assert run_manifest.with_folders(plain, HERE) == plain


def kept(text: str, document: Document) -> str:
    return run_manifest.kept_manifest(text, document, ["x.yaml", "--set", "a=\nb"], Path("runs/x"))


def test_a_manifest_that_was_not_changed_is_kept_as_it_was_written() -> None:
    text = kept(JOB, document_in(JOB))
    assert text.endswith(JOB)
    assert "#   atoll run x.yaml --set 'a= b'\n" in text
    assert "atoll run runs/x/manifest.yaml" in text
    assert parse(text) == parse(JOB)
    assert kept(text, document_in(text)) == text


def test_what_was_changed_is_kept_with_the_files_other_objects() -> None:
    text = f"{CLAIM}---\n{JOB}"
    found = kept(text, document_in(text, ("spec.steps=10",)))
    assert parse(found).spec.steps == 10
    kinds = [each["kind"] for each in yaml.safe_load_all(found)]
    assert kinds == ["PersistentVolumeClaim", "DecoupledTrainingJob"]


def test_two_runs_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = run_manifest.default_out("tiny", 1e9)
    assert first.parent == Path("runs")
    assert first.name.startswith("tiny-2001")
    first.mkdir(parents=True)
    assert run_manifest.default_out("tiny", 1e9).name == f"{first.name}-2"
