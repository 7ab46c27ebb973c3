"""The manifest of a script, and what a run folder keeps of any manifest."""

from pathlib import Path

import pytest
import yaml

from atoll_operator.api.manifest import document_in, from_object, parse
from atoll_operator.local import manifests
from atoll_operator.local.manifests import Document
from atoll_operator.local.plan import processes
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
    return manifests.of_script(script, arguments, learners=learners, steps=steps, regions=regions)


def test_a_script_becomes_a_manifest_with_the_defaults_of_the_crd(script: Path) -> None:
    job = from_object(made(script, "--lr", "1e-3", learners=3))
    assert job.name == "train-me"
    assert job.spec.steps == 400
    assert job.spec.slots == ("local-0", "local-1", "local-2")
    container = job.spec.learner.template.container
    assert container.command == ["python", str(script)]
    assert container.args == ["--lr", "1e-3"]
    assert job.spec.sync == parse(JOB).spec.sync


@pytest.mark.parametrize(
    ("stem", "name"),
    [("01_Train", "01-train"), ("_", "script"), ("a" * 29 + "_" + "b" * 40, "a" * 29)],
)
def test_a_job_is_named_after_its_script_however_that_is_called(
    stem: str, name: str, tmp_path: Path
) -> None:
    script = tmp_path / f"{stem}.py"
    script.write_text("")
    assert from_object(made(script)).name == name


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
    changed = manifests.with_gpus(before, 2)
    limits = changed["spec"]["learner"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 2}
    own = changed["spec"]["regions"][1]["podOverrides"]["resources"]["limits"]
    assert own == {"cpu": 1, "nvidia.com/gpu": 2}
    assert before == document_in(text)
    from_object(changed)


def test_the_processes_of_a_learner_stay_in_the_manifest(script: Path) -> None:
    before = made(script, "--lr", "1")
    changed = manifests.with_processes(before, 2)
    assert before == made(script, "--lr", "1")
    planned = processes(from_object(changed), Path("/out"), (1,), {}, new=True)
    learners = [each for each in planned if each.role == "learner"]
    assert {each.command for each in learners} == {
        ("atoll-worker", "launch", "--", "python", str(script), "--lr", "1")
    }
    assert {each.env["PET_NPROC_PER_NODE"] for each in learners} == {"2"}
    again = manifests.with_processes(changed, 3)
    container = again["spec"]["learner"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "PET_NPROC_PER_NODE", "value": "3"}]
    assert container["command"][:3] == ["atoll-worker", "launch", "--"]
    assert container["command"].count("launch") == 1


def test_a_region_with_a_command_of_its_own_has_processes_too() -> None:
    own = "{command: [python, b.py], env: [{name: A, value: b}, {name: PET_NPROC_PER_NODE}]}"
    text = JOB.replace("{name: eu}", f"{{name: eu, podOverrides: {own}}}")
    text = text.replace("podOverrides: {args: [--layers, '3']}", "podOverrides: {command: [a]}")
    changed = manifests.with_processes(document_in(text), 2)
    planned = processes(from_object(changed), Path("/out"), (1,), {}, new=True)
    found = {each.name: each for each in planned if each.role == "learner"}
    assert found["us-0"].command == ("atoll-worker", "launch", "--", "a")
    assert found["eu-0"].command == ("atoll-worker", "launch", "--", "python", "b.py")
    assert {each.env["PET_NPROC_PER_NODE"] for each in found.values()} == {"2"}
    assert found["eu-0"].env["A"] == "b"


def test_the_built_in_model_is_started_as_several_processes() -> None:
    two = from_object(manifests.with_processes(document_in(JOB), 2)).spec.learner.template
    assert two.container.command[:3] == ["atoll-worker", "launch", "--"]
    assert two.container.command[3:] == ["python3", "-m", "atoll_worker", "bytegpt.train:main"]
    one = manifests.with_processes(document_in(JOB), 1)
    assert from_object(one).spec.learner.template.container.command == []


def folders(document: Document) -> set[str]:
    """The working folders of the job's learners."""
    planned = processes(from_object(document), Path("/out"), (1,), {}, new=True)
    return {each.folder for each in planned if each.role == "learner"}


def test_relative_working_folders_are_kept_for_any_current_folder(script: Path) -> None:
    assert folders(manifests.with_folders(made(script), HERE)) == {"/here"}
    container = "{name: x, command: [python, a.py], workingDir: code}"
    named = JOB + f"  learner: {{template: {{spec: {{containers: [{container}]}}}}}}\n"
    assert folders(manifests.with_folders(document_in(named), HERE)) == {"/here/code"}
    absolute = document_in(named.replace("workingDir: code", "workingDir: /app"))
    assert folders(manifests.with_folders(absolute, HERE)) == {"/app"}
    assert folders(manifests.with_folders(document_in(JOB), HERE)) == {"/here"}  # of --data *.txt
    plain = document_in(JOB.replace(", podOverrides: {args: [--layers, '3']}", ""))
    assert manifests.with_folders(plain, HERE) == plain


def kept(text: str, document: Document) -> str:
    return manifests.kept(text, document, ["x.yaml", "--set", "a=\nb"], Path("runs/x"))


def test_a_manifest_that_was_not_changed_is_kept_as_it_was_written() -> None:
    text = kept(JOB, document_in(JOB))
    assert text.endswith(JOB)
    assert "#   atoll run x.yaml --set 'a= b'\n" in text
    assert "atoll run runs/x/manifest.yaml" in text
    assert parse(text) == parse(JOB)
    assert kept(text, document_in(text)) == text


def test_what_was_changed_is_kept_with_the_files_other_objects() -> None:
    text = f"{CLAIM}---\n{JOB}"
    changed = document_in(text, ("spec.steps=10",))
    found = kept(text, changed)
    assert parse(found).spec.steps == 10
    assert [each["kind"] for each in yaml.safe_load_all(found)] == [
        "PersistentVolumeClaim",
        "DecoupledTrainingJob",
    ]


def test_two_runs_that_start_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = manifests.default_out("tiny", 1e9)
    assert first.parent == Path("runs")
    assert first.name.startswith("tiny-2001")
    first.mkdir(parents=True)
    assert manifests.default_out("tiny", 1e9).name == f"{first.name}-2"
