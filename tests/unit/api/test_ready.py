"""Ready, Stalled and the column State: what kstatus and Argo CD make of a job."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import lupa
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api import crd
from atoll_operator.api.status.conditions import (
    Facts,
    Hold,
    Phase,
    PhaseKind,
    conditions_of,
    has_begun,
    merged,
    rejected,
    transitions,
)
from atoll_operator.api.status.reasons import REASONS

NOW = "2026-01-01T00:00:00Z"
TOOLS_MD = Path(__file__).resolve().parents[3] / "docs/tools.md"
RUNNING = Phase(kind=PhaseKind.RUNNING, reason="Running", message="")
FAILED = Phase(kind=PhaseKind.FAILED, reason="BadInput", message="no such file")
TRAINS = Facts(phase=RUNNING, shard_states=(pb.SHARD_SERVING,), desired=2, live=2, quorum=2)
LOST = Hold(reason="SyncerLost", message="no shard at lb:7700 has answered")
SILENT = replace(TRAINS, shard_states=(None,), live=None)


def of_kind(kind: PhaseKind, reason: str = "x") -> Facts:
    return replace(TRAINS, phase=Phase(kind=kind, reason=reason, message="because"))


PROGRESSES = ("InProgress", "Progressing")
CASES = [
    ("Starting", SILENT, "InProgress", "Progressing"),
    ("Starting", replace(TRAINS, live=1), "InProgress", "Progressing"),
    ("Starting", replace(TRAINS, shard_states=(pb.SHARD_STARTING,)), "InProgress", "Progressing"),
    ("Training", TRAINS, "Current", "Healthy"),
    ("Training", replace(TRAINS, live=2, desired=3), "Current", "Healthy"),
    ("Degraded", replace(TRAINS, losses=("x-0 is on n1, which is silent",)), "Current", "Healthy"),
    ("Waiting", replace(TRAINS, live=1, begun=True), "InProgress", "Progressing"),
    ("SyncerSilent", replace(SILENT, begun=True), "InProgress", "Progressing"),
    ("SyncerLost", replace(SILENT, hold=LOST), "InProgress", "Progressing"),
    ("NotRead", replace(TRAINS, unread="503"), "InProgress", "Progressing"),
    ("Stalled", replace(TRAINS, stalled_seconds=500.0), "InProgress", "Progressing"),
    ("Training", replace(TRAINS, stalled_seconds=500.0, tick_seconds=120.0), "Current", "Healthy"),
    ("Stalled", replace(TRAINS, stalled_seconds=3601.0, tick_seconds=9e3), *PROGRESSES),
    ("Degraded", replace(TRAINS, refused=("Service x: no",)), "Current", "Healthy"),
    ("Refused", replace(TRAINS, live=1, refused=("Service x: no",)), "Failed", "Degraded"),
    ("Refused", replace(TRAINS, refused=("x: no",), template_refused=True), "Failed", "Degraded"),
    ("Exporting", replace(TRAINS, shard_states=(pb.SHARD_FINAL,)), "Current", "Healthy"),
    ("Evaluating", of_kind(PhaseKind.FINISHING, "Evaluating"), "Current", "Healthy"),
    ("LearnersFinished", of_kind(PhaseKind.FINISHING, "LearnersFinished"), "Current", "Healthy"),
    ("Complete", of_kind(PhaseKind.COMPLETE, "Trained"), "Current", "Healthy"),
    ("Suspended", of_kind(PhaseKind.SUSPENDED, "Suspended"), "InProgress", "Suspended"),
    ("Failed", of_kind(PhaseKind.FAILED, "StoreLost"), "Failed", "Degraded"),
    ("Rejected", of_kind(PhaseKind.REJECTED, "NotSupported"), "Failed", "Degraded"),
]


def written(facts: Facts, generation: int = 3) -> dict[str, Any]:
    """The job's object with the status of these facts."""
    conditions = [each.to_object() for each in merged([], conditions_of(facts), 3, NOW)]
    status = {"observedGeneration": 3, "conditions": conditions}
    return {"metadata": {"generation": generation}, "status": status}


def condition(job: dict[str, Any], kind: str) -> Any:
    return next(each for each in job["status"]["conditions"] if each["type"] == kind)


def kstatus(job: dict[str, Any]) -> str:
    """The generic rules of sigs.k8s.io/cli-utils/pkg/kstatus, in their order."""
    if job["status"].get("observedGeneration", 0) != job["metadata"]["generation"]:
        return "InProgress"
    statuses = {each["type"]: each["status"] for each in job["status"]["conditions"]}
    if statuses.get("Reconciling") == "True":
        return "InProgress"
    if statuses.get("Stalled") == "True":
        return "Failed"
    return "Current" if statuses.get("Ready", "True") == "True" else "InProgress"


def argo_cd(job: dict[str, Any]) -> tuple[str, str]:
    """Status and message of the script in docs/tools.md."""
    (script,) = re.findall(r"```lua\n(.*?)```", TOOLS_MD.read_text(), re.DOTALL)
    runtime = lupa.LuaRuntime(unpack_returned_tuples=True)
    judge = runtime.eval(f"function(obj) {script} end")
    found = judge(runtime.table_from(job, recursive=True))
    return found["status"], found["message"]


@pytest.mark.parametrize(("state", "facts", "kstatus_says", "argo_says"), CASES)
def test_tools_that_know_no_other_condition_judge_a_job_right(
    state: str, facts: Facts, kstatus_says: str, argo_says: str
) -> None:
    job = written(facts)
    found = (condition(job, "Ready")["reason"], kstatus(job), argo_cd(job)[0])
    assert found == (state, kstatus_says, argo_says)


def test_a_spec_that_was_not_looked_at_yet_is_in_progress() -> None:
    job = written(TRAINS, generation=4)
    assert (kstatus(job), argo_cd(job)[0]) == PROGRESSES
    assert argo_cd({"metadata": {"generation": 1}})[0] == "Progressing"
    assert {each.reason for each in REASONS if each.type == "Ready"} == {each[0] for each in CASES}


def test_what_is_wrong_is_in_the_message() -> None:
    job = written(replace(TRAINS, phase=FAILED))
    assert argo_cd(job) == ("Degraded", "no such file")
    before = merged([], conditions_of(TRAINS), 1, NOW)
    news = {x.type for x in transitions(before, conditions_of(replace(TRAINS, phase=FAILED)))}
    assert "Failed" in news
    assert not {"Ready", "Stalled"} & news  # a summary brings no Event beside it
    assert condition(job, "Stalled")["message"] == "BadInput: no such file"
    (ready, stalled) = rejected("Invalid", "spec.x: is unknown; remove it")[-2:]
    assert (ready.reason, ready.message) == ("Rejected", "spec.x: is unknown; remove it")
    assert (stalled.status, stalled.message) == ("True", "Invalid: spec.x: is unknown; remove it")


def test_a_job_that_has_trained_waits_and_does_not_start() -> None:
    status = merged([], conditions_of(TRAINS), 1, NOW)
    assert has_begun(status)
    waits = merged(status, conditions_of(replace(SILENT, begun=has_begun(status))), 1, NOW)
    assert waits[-2].reason == "SyncerSilent"
    assert has_begun(waits)
    assert not has_begun(merged([], conditions_of(SILENT), 1, NOW))
    suspended = conditions_of(of_kind(PhaseKind.SUSPENDED, "Suspended"))
    assert not has_begun(merged(waits, suspended, 1, NOW))


def test_a_condition_has_the_schema_of_metav1_condition() -> None:
    items = crd.status_schema()["properties"]["conditions"]["items"]
    assert items["required"] == ["type", "status", "lastTransitionTime", "reason", "message"]
    assert items["properties"]["reason"]["minLength"] == 1
    for name, each in items["properties"].items():
        assert name in ("message", "observedGeneration") or each.keys() & {
            "pattern", "format", "enum",
        }  # fmt: skip
    for each in REASONS:
        assert re.fullmatch(items["properties"]["reason"]["pattern"], each.reason)
        assert re.fullmatch(items["properties"]["type"]["pattern"], each.type)
