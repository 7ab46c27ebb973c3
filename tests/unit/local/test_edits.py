"""A person changes a run: what may change, what the folder then says, and who follows it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from atoll_operator import cli
from atoll_operator.api.job import field_rules
from atoll_operator.api.job.parsing import parse
from atoll_operator.local import atoll_run, local_status, run_folder, run_manifest
from atoll_operator.local.gpus import VisibleGpus
from atoll_operator.local.poller import Poller
from atoll_operator.local.run_files import (
    LENGTH_FILE,
    MANIFEST_FILE,
    RUN_FILE,
    SLOTS_FILE,
    STATUS_FILE,
    write_whole,
)
from atoll_operator.local.run_manifest import ManifestInUse
from atoll_operator.local.show import live
from atoll_operator.local.supervisor import ROLES
from atoll_protos.errors import SpecError
from atoll_protos.job import schedule
from atoll_protos.job.run_file import Expected, RunFile
from unit.local.supervised import IdleSupervisor
from unit.local.test_atoll_run import training_of
from unit.local.test_local_status import MANIFEST, NOW, job, reply, said

ASKING = (
    "spec.learner.template={spec: {containers:"
    " [{name: learner, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run at step 50 of 200, with two learners in region a and one in b."""
    (tmp_path / MANIFEST_FILE).write_text(f"{run_manifest.HEADER}:\n{MANIFEST}")
    (tmp_path / RUN_FILE).write_text("{}")
    status(tmp_path)
    return tmp_path


def status(out: Path, state: str = "Serving") -> None:
    found = local_status.status(job(), [reply(state), reply()], NOW)
    (out / STATUS_FILE).write_text(json.dumps(found.to_object()))


def atoll(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [*map(str, words)])


def refused(*words: str | Path) -> str:
    error = atoll(*words).exception
    assert isinstance(error, SpecError)
    return str(error)


# ---------------------------------------------------------------- what may change


@pytest.mark.parametrize("fixed", field_rules.FIXED, ids=lambda each: each.path)
def test_what_no_edit_of_a_cluster_may_change_is_refused_in_its_words(
    fixed: field_rules.Fixed,
) -> None:
    """The same fields, changed in the same way, are given to a real API server (test_changes)."""
    claims = "spec.syncer.storage={type: PersistentVolumeClaim, storageClassName: a}"
    bucket = "spec.syncer.storage={type: ObjectStore, url: 's3://models/runs'}"
    changes = {
        "seed": "spec.seed=5",
        "learner.hosts": "spec.learner.hosts=2",
        "syncer.region": "spec.syncer.region=b",
        "syncer.storage.storageClassName": claims.replace("Name: a", "Name: b"),
        "syncer.storage.url": bucket.replace("runs", "others"),
        "syncer.shards": "spec.syncer.shards=3",
        "syncer.tls.caSecret": "spec.syncer.tls.caSecret=another",
        "sync": "spec.sync.period=17",
        "managedBy": "spec.managedBy=x",
        "steps": "spec.tokens=5",
    }
    begun = bucket if fixed.path == "syncer.storage.url" else claims
    before, change = parse(MANIFEST, (begun,)), changes[fixed.path]
    text = MANIFEST.replace("steps: 200", "") if fixed.path == "steps" else MANIFEST
    after = parse(text, (begun, change) if "storage=" not in change else (change,))
    with pytest.raises(SpecError) as found:
        field_rules.check_edit(before, after)
    assert str(found.value) == f"spec.{fixed.path}: {fixed.text}"
    field_rules.check_edit(before, before)


def test_other_volumes_or_another_place_may_follow_what_was_neither() -> None:
    """As the API server allows it."""
    none = parse(MANIFEST)
    claims = parse(
        MANIFEST, ("spec.syncer.storage={type: PersistentVolumeClaim, storageClassName: a}",)
    )
    field_rules.check_edit(claims, parse(MANIFEST, ("spec.syncer.storage.storageClassName=b",)))
    for storage in ("{type: ObjectStore, url: 's3://b/runs'}", "{type: Ephemeral}"):
        field_rules.check_edit(none, parse(MANIFEST, (f"spec.syncer.storage={storage}",)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("spec.learner.template={spec: {containers: [{name: learner}]}}", "spec.learner.template"),
        ("spec.regions.b.podOverrides={args: [x]}", "spec.regions[b].podOverrides"),
        (
            "spec.regions=[{name: c}, {name: a, learners: 2, placement: Anywhere}]",
            "spec.regions[a].placement",
        ),
        ("spec.evaluator={}", "spec.evaluator"),
    ],
)
def test_what_processes_were_started_with_changes_when_nothing_runs(
    folder: Path, change: str, field: str
) -> None:
    with run_folder.running(folder), pytest.raises(SpecError) as found:
        run_manifest.edit(folder, [change])
    assert found.value.field.startswith(field)
    assert "start it again with this folder" in found.value.remedy
    assert not run_manifest.edit(folder, [change]).runs
    assert parse((folder / MANIFEST_FILE).read_text()) == parse(MANIFEST, (change,))


def test_regions_come_and_go_while_it_runs_but_not_that_of_the_syncer(folder: Path) -> None:
    def edited(change: str) -> list[str]:
        found = run_manifest.edit(folder, [change])
        return run_manifest.differences(found.before, found.after)

    with run_folder.running(folder):
        lines = edited("spec.regions=[{name: a, learners: 2}, {name: c, learners: 3}]")
        assert lines == ["c is a new region; its learners: 3", "b is no region any more"]
        with pytest.raises(SpecError, match="must be a region of this job"):
            edited("spec.regions=[{name: c, learners: 3}]")


# ---------------------------------------------------------------- the command


def test_an_edit_is_in_the_manifest_and_says_what_is_another(folder: Path) -> None:
    learners = ("--learners", "b=3", "--learners", "a=0", "--learners", "c=2")
    words: tuple[str | Path, ...] = ("edit", folder, *learners, "--steps", "20000")
    with run_folder.running(folder):
        lines = atoll(*words).output.splitlines()
        again = atoll(*words).output
    assert lines == [
        f"{folder}: a has 0 learners, it had 2",
        f"{folder}: b has 3 learners, it had 1",
        f"{folder}: c is a new region; its learners: 2",
        f"{folder}: it is 20,000 steps long, it was 200",
    ]
    assert again == ""
    text = (folder / MANIFEST_FILE).read_text()
    assert text.startswith(f"{run_manifest.HEADER}:\n")  # what it was made from stays on top
    spec = parse(text).spec
    assert (spec.steps, [each.learners for each in spec.regions]) == (20_000, [0, 3, 2])


def test_without_a_run_the_next_one_has_the_edit(folder: Path) -> None:
    output = atoll("edit", folder, "--steps", "300").output
    assert output.endswith(f"nothing runs in it now; `atoll run {folder} --resume` continues so\n")
    assert parse((folder / MANIFEST_FILE).read_text()).spec.steps == 300


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "nothing is to change; give --learners"),
        (["--learners", "3"], "is no number of a region; write it as eu=3"),
        (["--learners", "a.placement=3"], "'a.placement' is no region; write it as eu=3"),
        (["--learners", "c=0"], "the list has no entry c; give a number below 2, or a name: a, b"),
        (["--learners", "syncers=3"], "spec.regions: a name begins with syncer or evaluator"),
        (["--learners", "a=0", "--learners", "b=1"], "spec.sync.quorum: must not be more than"),
        (["--tokens", "9"], "spec.steps: steps and tokens are both given"),
    ],
)
def test_a_wrong_edit_is_named_and_changes_nothing(
    folder: Path, words: list[str], problem: str
) -> None:
    before = (folder / MANIFEST_FILE).read_text()
    assert problem in refused("edit", folder, *words)
    assert (folder / MANIFEST_FILE).read_text() == before


def test_one_person_edits_at_a_time(folder: Path) -> None:
    with run_folder.editing(folder):
        assert "is edited by another atoll edit (process" in refused("edit", folder, "--steps", "9")


def test_a_complete_run_stays_as_it_is(folder: Path) -> None:
    status(folder, "Complete")
    for words in (("edit", "--steps", "9"), ("stop",)):
        assert "is complete since step 50, and stays so" in refused(words[0], folder, *words[1:])


def test_suspend_and_resume_are_for_what_runs(folder: Path) -> None:
    for verb, suspended in (("suspend", True), ("resume", False)):
        assert f"`atoll run {folder} --resume` continues it" in refused(verb, folder)
        with run_folder.running(folder):
            assert atoll(verb, folder).exit_code == 0
        assert parse((folder / MANIFEST_FILE).read_text()).spec.suspend is suspended


@pytest.mark.parametrize(
    ("given", "field", "reached"), [("steps", "steps", 50), ("tokens", "tokens", 1200)]
)
def test_what_is_stopped_is_as_long_as_it_was_trained(
    folder: Path, given: str, field: str, reached: int
) -> None:
    text = MANIFEST.replace("steps: 200", f"{given}: 20000\n  suspend: true")
    (folder / MANIFEST_FILE).write_text(text)
    with run_folder.running(folder):
        assert atoll("stop", folder).exit_code == 0
    spec = parse((folder / MANIFEST_FILE).read_text()).spec
    assert (getattr(spec, field), spec.suspend) == (reached, False)


# ---------------------------------------------------------------- the run that follows


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of the folder, and its supervisor; nobody answers for its shards."""
    said_of: list[str] = []
    monkeypatch.setattr("atoll_operator.local.atoll_run.SETTLING_SECONDS_MAX", 0.0)
    training = training_of(folder, say=said_of.append)
    asked = Poller(
        atoll_run.with_checkpoints(parse(MANIFEST), folder), ("127.0.0.1:1", "127.0.0.1:1")
    )
    monkeypatch.setattr(asked.links, "ask", lambda **_: [reply(), reply()])
    training.poller, processes = asked, IdleSupervisor()
    training.supervisor = processes
    text = (folder / MANIFEST_FILE).read_text()
    training.manifest = ManifestInUse(out=folder, text=text, plan=lambda x: list(x.spec.slots))  # type: ignore[arg-type]
    return SimpleNamespace(training=training, done=processes.done, said=said_of, out=folder)


def test_the_files_say_an_edit_before_a_learner_starts(run: Any) -> None:
    write_whole(run.out / LENGTH_FILE, run_manifest.next_length(run.out, 200, None))
    run.training.advance(1.0)
    assert run.done == ["pass"]
    run_manifest.edit(
        run.out, ["spec.regions.b.learners=2", "spec.regions.+c.learners=1", "spec.steps=300"]
    )
    run.training.advance(2.0)
    assert run.done[1:] == [["a-0", "a-1", "b-0", "b-1", "c-0"], "pass"]
    assert run.training.supervisor.steps == 300
    assert {"b-1", "c-0"} < Expected.from_json((run.out / SLOTS_FILE).read_text()).slots
    written = RunFile.from_json((run.out / RUN_FILE).read_text())
    assert written.slots[-1] == "c-0"  # which its learner looks for
    assert written.steps == 300
    assert written.checkpoint is not None, "checkpoints go where they went"
    assert schedule.read((run.out / LENGTH_FILE).read_text()).steps == 300
    assert schedule.read((run.out / LENGTH_FILE).read_text()).revision == 2
    run_manifest.edit(run.out, ["spec.regions=[{name: a, learners: 2}, {name: b}]"])
    run.training.advance(3.0)
    assert schedule.read((run.out / LENGTH_FILE).read_text()).revision == 2  # it is no other length
    run.training.advance(4.0)
    assert run.done[3:] == [["a-0", "a-1", "b-0"], "pass", "pass"]


def test_what_a_hand_writes_wrong_is_named_and_the_run_goes_on(run: Any) -> None:
    text = (run.out / MANIFEST_FILE).read_text()
    (run.out / MANIFEST_FILE).write_text(text.replace("fragments: 4", "fragments: 2"))
    run.training.advance(1.0)
    run.training.advance(2.0)
    assert run.done == ["pass", "pass"]
    assert [each for each in run.said if "is not followed: spec.sync: cannot change" in each]
    conditions = {each.type: each for each in run.training.status.conditions}
    assert conditions["Accepted"].reason == "NotSupported"
    assert said(run.training.status.to_object())["Progressing"] == "True/Training"
    (run.out / MANIFEST_FILE).write_text(text.replace("steps: 200", "steps: 9000"))
    run.training.advance(3.0)
    assert run.training.supervisor.steps == 9000  # not by what was refused
    assert said(run.training.status.to_object())["Accepted"] == "True/Valid"


def test_an_edit_that_the_disk_does_not_take_is_followed_later(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_manifest.edit(run.out, ["spec.steps=300"])
    with monkeypatch.context() as patch:
        patch.setattr(run.training.files, "write", lambda *_: False)
        run.training.advance(1.0)
    assert run.done == ["pass"]
    run.training.advance(2.0)
    assert run.done[1] == ["a-0", "a-1", "b-0"]


def test_a_suspended_run_asks_nobody_until_it_is_resumed(run: Any) -> None:
    run.training.advance(1.0)
    run_manifest.edit(run.out, ["spec.suspend=true"])
    run.training.advance(2.0)
    run.training.advance(3.0)
    stops = [("stop", ROLES[:-1]), ("stop", ROLES)]
    assert [each for each in run.done if each[0] == "stop"] == stops
    assert run.done.count("pass") == 1
    assert said(run.training.status.to_object())["Suspended"] == "True/Suspended"
    ready = next(each for each in run.training.status.conditions if each.type == "Ready")
    assert ready.message.endswith(f"`atoll resume {run.out}` continues")
    resting = run.training.poller.resting(run.training.status, 9.0)
    assert "suspended" in live.line(resting)
    assert live.picture(resting)
    run_manifest.edit(run.out, ["spec.suspend=false"])
    run.training.advance(4000.0)  # a step that has not moved meanwhile has not stalled
    assert run.done[-2:] == ["resume", "pass"]
    assert said(run.training.status.to_object())["Progressing"] == "True/Training"


def test_a_run_may_begin_suspended(run: Any) -> None:
    run.training.poller.job = parse(MANIFEST, ("spec.suspend=true",))
    run.training.advance(1.0)
    assert "pass" not in run.done
    assert said(run.training.status.to_object())["Suspended"] == "True/Suspended"


def test_to_resume_a_run_means_that_it_is_not_suspended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def train(asked: Any, *_: Any, manifest: str, **__: Any) -> int:
        ran.append((asked.spec.suspend, parse(manifest).spec.suspend))
        return 0

    monkeypatch.setattr("atoll_operator.local.atoll_run.train", train)
    run_manifest.edit(folder, ["spec.suspend=true"])
    manifest = folder / MANIFEST_FILE
    for words in ((manifest, "--out", folder / "new"), (folder, "--resume")):
        assert atoll("run", *words).exit_code == 0
    assert ran == [(True, True), (False, False)]


def test_a_run_that_is_complete_follows_no_edit(run: Any) -> None:
    run.training.supervisor.complete_at = 1.0
    run_manifest.edit(run.out, ["spec.steps=300"])
    run.training.advance(2.0)
    assert run.done == ["pass"]


def test_who_stays_keeps_gpu_and_port(tmp_path: Path) -> None:
    found = VisibleGpus(devices=("0", "1", "2", "3"))
    places = atoll_run.Places(out=tmp_path, endpoints=("x:1", "x:2"), found=found)

    def devices(*changes: str) -> dict[str, str]:
        edited = parse(MANIFEST, (ASKING, "spec.learner.hosts=1", *changes))
        planned = places.planned(edited, new=False)
        return {x.name: x.env["CUDA_VISIBLE_DEVICES"] for x in planned if x.role == "learner"}

    assert devices() == {"a-0": "0", "a-1": "1", "b-0": "2"}
    assert devices("spec.regions.a.learners=1", "spec.regions.b.learners=3") == {
        "a-0": "0", "b-0": "2", "b-1": "1", "b-2": "3",
    }  # fmt: skip
    with pytest.raises(SpecError, match="need 5, and this machine has 4"):
        devices("spec.regions.b.learners=3")
    hosts = "spec.learner.hosts=2"
    two = atoll_run.Places(out=tmp_path, endpoints=("x:1", "x:2"), found=found)

    def ports(*changes: str) -> dict[str, int]:
        two.planned(parse(MANIFEST, (hosts, *changes)), new=False)
        return dict(two.meetings)

    before = ports()
    after = ports("spec.regions.a.learners=3")
    assert {slot: after[slot] for slot in before} == before
    assert len({*after.values()}) == 4
