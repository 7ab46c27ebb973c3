"""A new job takes up what another one has kept, if it fits and nobody else can write to it."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.api.job import unsupported
from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.api.job.spec import KIND
from atoll_operator.api.status.job_status import Status
from atoll_operator.kube.edges.api import path
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.observation import Former
from atoll_operator.kube.plan.manifest import restore
from atoll_operator.kube.plan.manifest.phase import export_url
from atoll_operator.kube.plan.pauses import RESTORE_SECONDS
from atoll_operator.kube.plan.workloads.configs import shards_file
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import RunFile
from atoll_protos.names import Label
from atoll_syncer.model.history import History
from atoll_syncer.model.log import RunStarted
from atoll_syncer.rules.runs import of_another_job
from unit.kube.cluster_values import MANIFEST, children
from unit.kube.world import World

VOLUMES = {"shards": 2, "storage": {"type": "PersistentVolumeClaim"}}
NEW = Status()
BEGUN = Status(start_time="2026-01-01T00:00:00Z")


pytestmark = pytest.mark.usefixtures("still")


def raw(name: str = "tiny", uid: str = "new-uid", **spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST)
    found["metadata"] |= {"name": name, "uid": uid, "namespace": "demo"}
    found["spec"] |= {"syncer": VOLUMES} | spec
    return found


def claims_of(name: str, uid: str, **spec: Any) -> list[dict[str, Any]]:
    """The claims that a job of this name and UID has made."""
    job = from_object(raw(name, uid, **spec))
    note = restore.of_claim(job, uid)
    return [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": f"{name}-syncer-{number}", "uid": f"claim-{number}",
                "labels": {Label.JOB: name, Label.JOB_UID: uid},
                "annotations": {Annotation.STATE: note},
            },
        }
        for number in range(2)
    ]  # fmt: skip


def taken(
    claims: list[dict[str, Any]], status: Status = NEW, former: dict[str, Any] | None = None,
    uid: str = "", name: str = "old", **spec: Any,
) -> Any:  # fmt: skip
    """The job `tiny` that restores `old`."""
    job = from_object(raw(restore={"fromJob": {"name": name, "uid": uid}}, **spec))
    return restore.restored(job, status, Former(job=former, claims=claims))


def refusal(*values: Any, **named: Any) -> str:
    with pytest.raises(SpecError) as caught:
        taken(*values, **named)
    return str(caught.value)


def test_the_new_job_has_the_old_ones_folder_claims_and_run_hash() -> None:
    job = taken(claims_of("old", "old-uid"), steps=900)
    assert (job.folder, job.claims_of, job.run_name) == ("old-uid", "old", "old")
    assert run_file(job).hash == run_file(from_object(raw("old"))).hash
    assert run_file(job).steps == 900
    assert export_url(job) == "pvc://old-syncer-0/old-uid/export"


def test_a_shard_takes_the_old_log_for_its_own_only_in_a_job_that_restores_it() -> None:
    started = RunStarted(run="r1", run_hash=run_file(from_object(raw("old"))).hash)
    history = History.of([started])
    restoring = shards_file(taken(claims_of("old", "old-uid"), steps=900))
    assert of_another_job(history, restoring) == ""
    assert "its run hash is" in of_another_job(history, shards_file(from_object(raw())))


def test_its_shards_mount_the_old_claims_and_it_makes_none() -> None:
    builder = replace(children(), job=taken(claims_of("old", "old-uid")))
    found = {(each["kind"], each["metadata"]["name"]): each for each in builder.objects()}
    assert not [kind for kind, _ in found if kind == "PersistentVolumeClaim"]
    pod = found["Deployment", "tiny-syncer-1"]["spec"]["template"]["spec"]
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"]
        for each in pod["volumes"] if "persistentVolumeClaim" in each
    }  # fmt: skip
    assert claims == {"atoll-data": "old-syncer-1"}
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert env["ATOLL_STORE"] == "/data/old-uid/commits"
    files = [each for (kind, name), each in found.items() if "-run-" in name]
    assert files
    for each in files:
        assert each["metadata"]["name"].startswith("tiny-run-")  # not those of the old job
        assert RunFile.from_json(each["data"]["run.json"]).job == "old"


def test_a_job_of_the_same_name_keeps_the_claims_and_says_whose_state_they_hold() -> None:
    job = taken(claims_of("tiny", "old-uid"), name="tiny")
    assert (job.folder, job.claims_of) == ("old-uid", "tiny")
    note = json.loads(restore.of_claim(job, "new-uid"))
    assert note["folder"] == "old-uid"
    after = claims_of("tiny", "new-uid")
    for each in after:
        each["metadata"]["annotations"][Annotation.STATE] = json.dumps(note)
    assert taken(after, BEGUN, name="tiny").folder == "old-uid"  # in every later pass


def test_what_was_restored_can_be_restored_again() -> None:
    claims = claims_of("older", "first-uid")
    middle = restore.restored(
        from_object(raw("middle", "m", restore={"fromJob": {"name": "older"}})), NEW,
        Former(claims=claims),
    )  # fmt: skip
    assert restore.of_claim(middle, "m") == claims[0]["metadata"]["annotations"][Annotation.STATE]
    assert taken(claims, name="older").run_name == "older"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 7}, "this job has"),
        ({"sync": {"fragments": 4, "period": 32}}, "give spec.sync, spec.seed and"),
    ],
)
def test_another_run_is_refused_with_both_hashes(change: dict[str, Any], said: str) -> None:
    text = refusal(claims_of("old", "old-uid"), **change)
    assert text.startswith("spec.restore.fromJob: the run that was kept has the run hash ")
    assert run_file(from_object(raw("old"))).hash in text
    assert said in text


def test_a_job_that_could_still_write_is_not_restored() -> None:
    claims = claims_of("old", "old-uid")

    def former(*true: str) -> dict[str, Any]:
        conditions = [{"type": each, "status": "True", "reason": "x"} for each in true]
        return raw("old", "old-uid") | {"status": {"conditions": conditions}}

    assert "still exists and has not failed; delete it" in refusal(claims, former=former())
    assert "is Complete" in refusal(claims, former=former("Complete"))
    assert taken(claims, former=former("Failed")).folder == "old-uid"
    assert taken(claims, BEGUN, former=former()).folder == "old-uid"  # it has it already


def test_two_jobs_do_not_carry_on_one_run() -> None:
    def heir(**status: Any) -> dict[str, Any]:
        return raw("heir", "heir-uid") | {"status": status}

    def both(other: dict[str, Any], status: Status = NEW) -> Any:
        job = from_object(raw(restore={"fromJob": {"name": "old"}}))
        former = Former(claims=claims_of("old", "old-uid"), heirs=[other])
        return restore.restored(job, status, former)

    began = {"startTime": "2026-01-01T00:00:00Z"}
    with pytest.raises(SpecError, match="the job heir carries on the run of old already; delete"):
        both(heir(**began))
    failed = [{"type": "Failed", "status": "True", "reason": "x"}]
    for other in (heir(), heir(**began, conditions=failed)):
        assert both(other).folder == "old-uid"
    assert both(heir(**began), BEGUN).folder == "old-uid"


def test_claims_that_are_missing_or_going_are_named() -> None:
    claims = claims_of("old", "old-uid")
    assert "old-syncer-1 of the job old are not there" in refusal(claims[:1])
    claims[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert "old-syncer-0" in refusal(claims)
    assert taken(claims, BEGUN).folder == "old-uid"  # its own pods still hold it


def test_a_claim_whose_note_was_deleted_is_not_restored() -> None:
    claims = claims_of("old", "old-uid")
    for each in claims:
        del each["metadata"]["annotations"]
    text = refusal(claims)
    assert text.startswith("spec.restore.fromJob.uid: the claim old-syncer-0 tells of no state")


def test_a_volume_that_several_jobs_have_used_tells_of_each() -> None:
    first, second = claims_of("old", "first-uid"), claims_of("old", "second-uid", seed=9)
    claims = [restore.with_former(new, old) for new, old in zip(second, first, strict=True)]
    assert [restore.with_former(new, old) for new, old in zip(second, claims, strict=True)] == (
        claims
    )  # in every pass
    assert taken(claims, seed=9).folder == "second-uid"
    assert taken(claims, uid="first-uid").folder == "first-uid"
    assert "has the run hash" in refusal(claims, uid="first-uid", seed=9)
    text = refusal(claims, uid="no-uid")
    assert text.startswith(
        "spec.restore.fromJob.uid: the claim old-syncer-0 tells of no state of a"
    )
    assert "give one of second-uid, first-uid" in text


def test_a_manifest_that_is_wrong_names_nobody() -> None:
    every: list[Any] = [None, [], {}, {"fromJob": 3}, {"fromJob": {"name": 3}}]
    for wrong in every:
        assert objects.restored_job({"spec": {"restore": wrong}}) == ""
    assert objects.restored_job({}) == ""


def restoring(name: str, *changes: tuple[str, Any]) -> World:
    """A job beside the claims of another one of this name."""
    world = World(("syncer", VOLUMES), ("export", {"url": "file:///models"}), *changes)
    for each in claims_of(name, "old-uid"):
        world.server.children[path(each["kind"], "demo", each["metadata"]["name"])] = each
    return world


def test_the_operator_waits_for_the_old_job_and_then_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = restoring("old", ("restore", {"fromJob": {"name": "old"}}))
    running = raw("old", "old-uid")
    running["metadata"]["resourceVersion"] = "1"
    show = world.server.show

    def also_old() -> None:
        show()
        world.server.cache.seen(KIND, running)

    with monkeypatch.context() as while_it_runs:
        while_it_runs.setattr(world.server, "show", also_old)
        world.run()
        world.run()
    accepted = world.said("Accepted")
    assert accepted["reason"] == "RestoreRefused"
    assert "the job old still exists" in accepted["message"]
    assert world.again == RESTORE_SECONDS
    assert path("Deployment", "demo", "tiny-syncer-0") not in world.server.children
    assert "apply Deployment tiny-syncer-0" in world.run()
    assert path("PersistentVolumeClaim", "demo", "tiny-syncer-0") not in world.server.children
    world.run()
    assert world.condition("Accepted") == "True"
    assert world.run() == []


def test_local_mode_names_its_own_way(tmp_path: Any) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(raw(restore={"fromJob": {"name": "old"}})))
    refused = unsupported.on_this_machine(from_object(yaml.safe_load(file.read_text())))
    assert refused is not None
    assert "atoll run DIR --resume" in str(refused)
    done = CliRunner().invoke(cli.app, ["run", str(file), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, SpecError)
    assert not (tmp_path / "out").exists()


def test_a_job_that_does_not_restore_keeps_what_its_claims_told_of_a_former_one() -> None:
    world = restoring("tiny")
    world.runs()
    claim = world.live("PersistentVolumeClaim", "tiny-syncer-0")
    note = json.loads(claim["metadata"]["annotations"][Annotation.STATE])
    assert note["folder"] == "job-uid"
    assert [each["folder"] for each in note["former"]] == ["old-uid"]
    assert world.run() == []
