"""Others change a job's objects: drift is reverted, and foreign objects are not touched."""

import json

from cluster.kubectl import until
from cluster.person import Person

DRIFT_SECONDS_MAX = 300.0
KINDS = "statefulset,deployment,service,configmap,serviceaccount,poddisruptionbudget"


def children(person: Person) -> dict[str, str]:
    """UIDs of the job's objects, by kind and name."""
    items = json.loads(person.types(f"kubectl get {KINDS} -l atoll.dev/job=tiny -o json"))["items"]
    return {
        f"{each['kind'].lower()}/{each['metadata']['name']}": each["metadata"]["uid"]
        for each in items
    }


def test_edits_of_every_child_are_reverted(running: Person) -> None:
    before = running.uids()
    wrong = {
        "service/tiny-syncer-0": {"spec": {"selector": {"wrong": "yes"}}},
        "service/tiny-eu-west": {"spec": {"publishNotReadyAddresses": False}},
        "deployment/tiny-syncer-0": {"metadata": {"labels": {"atoll.dev/job": "other"}}},
        "statefulset/tiny-us-east": {"metadata": {"labels": {"atoll.dev/region": "other"}}},
        "serviceaccount/tiny-learner": {"automountServiceAccountToken": True},
    }
    seen = {name: _object(running, name) for name in wrong}
    for name, patch in wrong.items():
        running.types(f"kubectl patch {name} --type=merge -p '{json.dumps(patch)}'")
    for name, patch in wrong.items():
        until(
            f"{name} is as it was",
            lambda name=name, patch=patch: _same(  # type: ignore[misc]
                _object(running, name), seen[name], patch
            ),
            DRIFT_SECONDS_MAX,
        )
    running.goes_on(["us-east-0", "eu-west-0"])
    assert running.uids() == before


def _object(person: Person, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(person.types(f"kubectl get {name} -o json"))
    return found


def _same(now: object, then: object, where: object) -> bool:
    """Whether two objects are the same at the places that a patch names."""
    if not isinstance(where, dict):
        return now == then
    if not isinstance(now, dict) or not isinstance(then, dict):
        return False
    if not all(key in then for key in where):  # added by the patch: must be gone, or ignored
        return now == then
    return all(_same(now.get(key), then.get(key), where[key]) for key in where)


def test_every_child_that_is_deleted_is_made_again(running: Person) -> None:
    before = children(running)
    kinds = ("service", "poddisruptionbudget", "serviceaccount", "deployment", "statefulset")
    for kind in kinds:
        running.types(f"kubectl delete {kind} -l atoll.dev/job=tiny")

    def again() -> bool:
        now = children(running)
        return now.keys() == before.keys() and all(
            now[name] != uid for name, uid in before.items() if name.split("/")[0] in kinds
        )

    until("all are there again", again, DRIFT_SECONDS_MAX)
    running.rests(2)  # in pods of the new ones
