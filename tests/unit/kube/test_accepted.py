"""A job goes on with the manifest that was accepted last while the present one cannot be."""

import copy
from typing import Any

import pytest
import yaml

from atoll_operator.api.job.parsing import from_object
from atoll_operator.kube.plan import accepted
from atoll_operator.kube.plan.accepted import Reading
from unit.kube.cluster_values import MANIFEST

CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a value of another version": (
        {"syncer": {"storage": {"type": "Tape"}}}, "Invalid", "spec.syncer.storage.type",
    ),
    "a type that is wrong": ({"steps": "many"}, "Invalid", "spec.steps"),
    "an export elsewhere": ({"export": {"url": "ftp://x/y"}}, "Invalid", "spec.export.url"),
}  # fmt: skip


def raw(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST)
    found["spec"] |= {"syncer": {"shards": 1}} | spec
    return found


def kept(spec: dict[str, Any]) -> dict[str, Any]:
    name = {"name": "tiny-accepted"}
    return {
        "kind": "ConfigMap",
        "metadata": name,
        "data": {accepted.SPEC: accepted.spec_text(spec)},
    }


def read(found: dict[str, Any], *children: dict[str, Any]) -> Reading:
    before = copy.deepcopy(found)
    reading = accepted.read(found, children)
    assert found == before
    return reading


@pytest.mark.parametrize("case", CHANGES)
def test_an_edit_that_cannot_be_accepted_changes_nothing_but_is_named(case: str) -> None:
    change, reason, field = CHANGES[case]
    good = raw()["spec"]
    reading = read(raw(**change, learner={"template": {}}), kept(good))
    assert reading.job == from_object(raw())
    assert reading.spec == good
    assert (reading.reason, reading.error.partition(":")[0]) == (reason, field)


@pytest.mark.parametrize("case", CHANGES)
def test_a_job_that_was_never_accepted_has_nothing_to_go_on_with(case: str) -> None:
    change, reason, _ = CHANGES[case]
    reading = read(raw(**change))
    assert reading.reason == reason
    assert not reading.spec
    assert (reading.job is None) == (reason == "Invalid")


def test_what_was_accepted_by_another_version_and_cannot_be_read_either_is_left_out() -> None:
    change, _, _ = CHANGES["a value of another version"]
    assert read(raw(**change), kept(raw(**change)["spec"])).job is None


def test_a_job_can_be_suspended_whatever_else_its_manifest_says() -> None:
    reading = read(raw(suspend=True, checkpoint={"url": "s3://x"}), kept(raw()["spec"]))
    assert reading.job is not None
    assert reading.job.spec.suspend


def test_fields_of_another_version_are_ignored_wherever_they_stand() -> None:
    newer = raw(cleverness={"level": 3})
    newer["spec"]["regions"][0]["zone"] = "a"
    newer["spec"]["sync"]["newer"] = 1
    reading = read(newer)
    assert reading.job == from_object(raw())
    assert not reading.error


def test_a_manifest_that_is_right_is_the_one_to_keep() -> None:
    reading = read(raw(), kept(raw(steps=7)["spec"]))
    assert reading.job is not None
    assert (reading.spec, reading.error) == (raw()["spec"], "")
