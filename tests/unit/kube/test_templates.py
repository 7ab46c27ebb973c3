"""A wrong pod template: of a new job nothing is made, a running one goes on, and a fix arrives."""

from typing import Any

import pytest

from atoll_operator.kube.edges.api import ApiError, ConflictError, path
from atoll_operator.kube.effects.apply import pod_of
from atoll_operator.kube.plan.planner import AGAIN_SECONDS
from unit.kube.cluster_values import children
from unit.kube.world import World

pytestmark = pytest.mark.usefixtures("still")

WRONG = {"imagee": ".spec.template.spec.containers[0].imagee: field not declared in schema"}
CLASS = {"'priorityClassName': 'nope'": 'pods "x" is forbidden: no PriorityClass with name nope'}


def template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def container(**fields: str) -> dict[str, Any]:
    return template(containers=[{"name": "x", **fields}])


MADE = "apply StatefulSet tiny-us-east"
TYPO, RIGHT, BETTER = container(imagee="y"), container(image="y"), container(image="z")
NOPE = template(priorityClassName="nope")


def world(learner: dict[str, Any], *changes: tuple[str, Any], **pods: str) -> World:
    """A new job, an API server that finds WRONG, and what else it finds in pods."""
    found = World(("learner", learner), *changes)
    found.server.wrong, found.server.wrong_pods = dict(WRONG), pods
    return found


def running(learner: dict[str, Any] | None = None) -> World:
    found = world(learner or {})
    found.runs()
    return found


def reason(found: World) -> str:
    return str(found.said("Accepted")["reason"])


def test_nothing_of_a_new_job_is_made_its_first_status_says_why_and_its_fix_arrives() -> None:
    wrong = world(TYPO)
    assert wrong.run() == []
    assert wrong.again == AGAIN_SECONDS
    wrong.run()
    accepted = wrong.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TemplateRefused")
    assert "StatefulSet tiny-us-east: .spec.template.spec.containers[0]." in accepted["message"]
    of = "(from spec.learner.template and podOverrides of the region us-east)"
    assert of in accepted["message"]
    assert wrong.said("Ready")["reason"] == "Refused"
    assert wrong.run() == []
    wrong.retry()
    wrong.run()
    assert wrong.memory.refused
    assert not wrong.server.children
    wrong.edit(learner=RIGHT)
    assert MADE in wrong.run()
    wrong.run()
    assert wrong.condition("Accepted") == "True"


def test_a_wrong_edit_leaves_what_runs_as_it_is_and_its_fix_arrives() -> None:
    found = running(RIGHT)
    for learner, image, said in ((TYPO, "y", "TemplateRefused"), (BETTER, "z", "Valid")):
        found.edit(learner=learner)
        found.runs()
        spec = found.live("StatefulSet", "tiny-us-east")["spec"]["template"]["spec"]
        assert spec["containers"][0]["image"] == image
        assert reason(found) == said


def test_a_wrong_template_of_the_evaluator_names_its_own_field() -> None:
    wrong = world({}, ("evaluator", TYPO))
    wrong.runs()
    assert "(from spec.evaluator.template)" in wrong.said("Accepted")["message"]


def test_an_object_of_somebody_else_is_left_to_the_look_at_its_owner() -> None:
    """A dry run against it would find our selector wrong, which is not what is wrong."""
    there = World(("learner", RIGHT))
    metadata = {"name": "tiny-us-east", "uid": "theirs"}
    theirs = {"metadata": metadata, "spec": {"template": {"metadata": {}}}}
    there.server.children[path("StatefulSet", "demo", "tiny-us-east")] = theirs
    there.runs()
    assert reason(there) == "ChildrenRefused"
    assert path("StatefulSet", "demo", "tiny-eu-west") in there.server.children


def test_a_template_of_which_no_pod_could_be_made_ends_no_pod_that_runs() -> None:
    """A StatefulSet is taken whatever its pods ask for; only a pod shows that they are refused."""
    found, new = running(), world(NOPE, **CLASS)
    found.server.wrong_pods = CLASS
    found.edit(learner=NOPE)
    found.runs()
    assert "nope" not in str(found.live("StatefulSet", "tiny-us-east")["spec"]["template"]["spec"])
    new.runs()
    assert not new.server.children
    for each in (found, new):
        assert reason(each) == "TemplateRefused"
        said = each.said("Accepted")["message"]
        assert "its pods would be refused: pods" in said
        assert "no PriorityClass with name nope" in said


@pytest.mark.parametrize(
    "message",
    [
        'pods "x" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8',
        'admission webhook "pods.example.com" does not support dry run',
        'pods is forbidden: User "operator" cannot create resource "pods" in API group ""',
    ],
)
def test_what_is_no_mistake_in_the_template_is_left_to_the_controller(message: str) -> None:
    assert MADE in world(NOPE, **dict.fromkeys(CLASS, message)).run()
    full = world(NOPE)
    full.server.raises["dry_run"] = ApiError(400, message)
    assert MADE in full.run()


@pytest.mark.parametrize(
    "message",
    [
        "policy: running under the ServiceAccount 'default' is not allowed",
        "unable to validate against any security context constraint: [provider nonroot-v2:"
        " Forbidden: not usable by user or serviceaccount]",
    ],
)
def test_what_a_policy_says_of_an_account_that_only_stands_in_is_no_mistake(message: str) -> None:
    said = dict.fromkeys(CLASS, message)
    assert MADE in world(NOPE, **said).run()
    own = template(priorityClassName="nope", serviceAccountName="mine")
    assert world(own, **said).run() == []


def test_where_the_jobs_own_account_is_there_its_pods_are_tried_with_it() -> None:
    found = running()
    found.server.wrong_pods = {"'tiny-learner'": "policy: this ServiceAccount may run no pods"}
    found.edit(learner=RIGHT)
    assert MADE not in found.runs()
    assert "this ServiceAccount may run no pods" in found.said("Accepted")["message"]


def test_of_a_new_job_each_pod_is_tried_once() -> None:
    """Its service accounts are not there yet, and that is known."""
    new = world({}, ("evaluator", {}))
    assert MADE in new.run()
    pods = ["tiny-eu-west-", "tiny-evaluator-", "tiny-syncer-0-", "tiny-us-east-"]
    assert sorted(each for each in new.server.tried if each.endswith("-")) == pods


def seeks_controllers(then: str = "") -> World:
    """A webhook looks for the controller of each pod, as Kueue's does; of others it says `then`."""
    found = world({})

    async def look(pod: Any) -> None:
        for owner in pod["metadata"].get("ownerReferences", ()):
            problem = f'{owner["kind"]}.apps "{owner["name"]}" not found'
            raise ApiError(403, f'admission webhook "mpod.kb.io" denied the request: {problem}')
        if then:
            raise ApiError(403, then)

    server: Any = found.server
    server.dry_run_pod = look
    return found


def test_a_webhook_that_looks_for_the_controller_of_a_pod_stops_no_job() -> None:
    assert MADE in seeks_controllers().run()
    assert MADE in seeks_controllers("policy: Pod must have an ownerReference").run()


def test_where_a_webhook_looks_for_controllers_mistakes_are_found_all_the_same() -> None:
    wrong = seeks_controllers('pods "x" is forbidden: violates PodSecurity "restricted"')
    wrong.runs()
    assert not wrong.server.children
    assert "violates PodSecurity" in wrong.said("Accepted")["message"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({}, ApiError(500, 'failed calling webhook "pods.example.com"')),
        ({"nope": 'Internal error occurred: failed calling webhook "sets.example"'}, None),
    ],
)
def test_a_webhook_that_is_away_is_waited_for_and_no_template_is_blamed(
    wrong: dict[str, str], error: ApiError | None
) -> None:
    away = world(NOPE)
    away.server.wrong = wrong
    if error is not None:
        away.server.raises["dry_run_pod"] = error
    away.runs()
    assert not away.server.children
    accepted = away.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "failed calling webhook" in accepted["message"]


def test_what_says_nothing_of_a_template_refuses_none() -> None:
    busy = World()
    busy.server.raises["dry_run_pod"] = ApiError(429, "slow down", 3.0)
    with pytest.raises(ApiError, match="slow down"):
        busy.run()
    assert not busy.memory.refused
    found = running()  # of which a workload was made again in the meantime
    found.server.raises["dry_run"] = ConflictError(409, "the UID does not match")
    found.edit(learner=RIGHT)
    assert MADE in found.run()
    assert not found.memory.refused


def test_an_edit_tries_what_it_changes_alone_and_the_others_take_theirs() -> None:
    found = running()
    found.server.tried.clear()
    found.edit(regions=[{"name": "us-east", "learners": 5}])
    assert MADE in found.run()
    assert not found.server.tried  # a change of numbers alone tries nothing
    found.server.wrong_pods = CLASS
    found.edit(evaluator=NOPE, learner=RIGHT)
    wrote = found.run()
    assert MADE in wrote
    assert "apply Deployment tiny-evaluator" not in wrote


def test_recommended_labels_of_the_user_stay_and_the_operators_own_do_not_change() -> None:
    given = "{app.kubernetes.io/name: mine, atoll.dev/role: wrong}"
    made = children(f"spec.learner.template.metadata.labels={given}").objects()
    one = next(each for each in made if each["kind"] == "StatefulSet")
    labels = one["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "mine"
    assert labels["app.kubernetes.io/component"] == labels["atoll.dev/role"] == "learner"


@pytest.mark.parametrize(
    ("kind", "owner", "name", "account"),
    [
        ("StatefulSet", "StatefulSet", "tiny-us-east-", "mine"),
        ("Deployment", "ReplicaSet", "tiny-syncer-0-", "tiny-syncer"),
    ],
)
def test_the_pod_that_is_tried_is_the_controllers_under_a_name_that_nobody_has(
    kind: str, owner: str, name: str, account: str
) -> None:
    made = children("spec.learner.template.spec.serviceAccountName=mine").objects()
    workload = next(each for each in made if each["kind"] == kind)
    pod, own = pod_of(workload), workload["spec"]["template"]
    assert pod["metadata"]["generateName"] == name
    assert "name" not in pod["metadata"]
    assert pod["metadata"]["labels"] == own["metadata"]["labels"]
    assert pod["spec"]["containers"] == own["spec"]["containers"]
    assert pod["spec"]["serviceAccountName"] == account
    (found,) = pod["metadata"]["ownerReferences"]  # a policy may refuse pods without one
    assert (found["apiVersion"], found["kind"]) == ("apps/v1", owner)
    assert found["controller"]
    assert found["uid"]


def test_an_edit_tries_one_of_the_sets_of_a_region_and_no_other_one_of_it_is_touched() -> None:
    """They differ in their names alone: with many learners each would be two calls."""
    regions, hosts = [{"name": "us-east", "learners": 3}, {"name": "eu-west"}], {"hosts": 2}
    found = World(("learner", RIGHT | hosts), ("regions", regions))
    found.runs()
    found.server.wrong = WRONG
    for learner, sets in ((TYPO, 0), (BETTER, 4)):
        found.server.tried.clear()
        found.edit(learner=learner | hosts)
        assert sum(each.startswith("apply StatefulSet") for each in found.run()) == sets
        tried = [each for each in found.server.tried if not each.endswith("-")]
        assert tried == ["tiny-us-east-0", "tiny-eu-west-0"]
        found.run()
        assert (reason(found) == "TemplateRefused") == (sets == 0)


def test_a_job_that_is_created_suspended_is_told_of_its_mistake_before_it_starts() -> None:
    waits = world(TYPO, ("suspend", True))
    waits.runs()
    assert reason(waits) == "TemplateRefused"
    waits.reconciler.memories.clear()  # a restarted operator does not forget it
    for _ in range(2):
        waits.run()
        assert reason(waits) == "TemplateRefused"
    waits.edit(learner=RIGHT)
    waits.runs()
    assert reason(waits) == "Valid"
    waits.server.tried.clear()
    assert waits.run() == []
    assert not waits.server.tried
    assert not waits.server.children


def test_what_is_no_longer_refused_to_a_suspended_job_is_forgotten() -> None:
    waits = world(TYPO, ("suspend", True))
    waits.runs()
    waits.server.wrong = {}  # such as a webhook that was wrong
    waits.retry()
    waits.runs()
    assert reason(waits) == "Valid"
