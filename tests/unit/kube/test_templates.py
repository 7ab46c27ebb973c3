"""A wrong pod template: of a new job nothing is made, a running one goes on, and a fix arrives."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.edges.api import ApiError, ConflictError, path
from atoll_operator.kube.plan.pauses import AGAIN_SECONDS
from atoll_operator.kube.trial import pod_of
from unit.kube.cluster_values import children
from unit.kube.world import KEY, World

WRONG = {"imagee": ".spec.template.spec.containers[0].imagee: field not declared in schema"}
TYPO = {"template": {"spec": {"containers": [{"name": "x", "imagee": "y"}]}}}
RIGHT = {"template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time stands still: what is written differs only by what is seen."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)


def world(learner: dict[str, Any]) -> World:
    found = World(("learner", learner))
    found.server.wrong = WRONG
    return found


def edit(found: World, learner: dict[str, Any]) -> None:
    assert found.server.job is not None
    found.server.job["spec"]["learner"] = learner
    found.server.job["metadata"]["generation"] += 1


def test_nothing_of_a_new_job_is_made_and_its_first_status_says_why() -> None:
    wrong = world(TYPO)
    assert wrong.run() == []
    assert wrong.again == AGAIN_SECONDS
    wrong.run()
    assert not wrong.server.children
    accepted = wrong.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TemplateRefused")
    assert (
        "StatefulSet tiny-us-east: .spec.template.spec.containers[0].imagee"
        in (accepted["message"])
    )
    assert (
        "(from spec.learner.template and podOverrides of the region us-east)"
        in (accepted["message"])
    )
    assert wrong.said("Ready")["reason"] == "Refused"
    assert wrong.run() == []


def test_it_is_tried_again_and_still_nothing_is_made() -> None:
    wrong = world(TYPO)
    wrong.run()
    memory = wrong.reconciler.memories[KEY]
    for key, each in memory.refused.items():
        memory.refused[key] = replace(each, again_at=0.0)
    wrong.run()
    assert memory.refused
    assert not wrong.server.children


def test_the_fix_of_a_new_job_arrives_at_once() -> None:
    wrong = world(TYPO)
    wrong.run()
    wrong.run()
    edit(wrong, RIGHT)
    assert "apply StatefulSet tiny-us-east" in wrong.run()
    wrong.run()
    assert wrong.condition("Accepted") == "True"


def test_a_wrong_edit_leaves_what_runs_as_it_is_and_its_fix_arrives() -> None:
    running = world(RIGHT)
    running.run()
    running.run()
    where = path("StatefulSet", "demo", "tiny-us-east")
    before = running.server.children[where]["spec"]["template"]
    edit(running, TYPO)
    running.run()
    running.run()
    assert running.server.children[where]["spec"]["template"] == before
    assert running.said("Accepted")["reason"] == "TemplateRefused"
    fixed = {"template": {"spec": {"containers": [{"name": "x", "image": "z"}]}}}
    edit(running, fixed)
    running.run()
    now = running.server.children[where]["spec"]["template"]["spec"]["containers"][0]
    assert now["image"] == "z"
    running.run()
    assert running.condition("Accepted") == "True"


def test_a_wrong_template_of_the_evaluator_names_its_own_field() -> None:
    wrong = World(("evaluator", TYPO))
    wrong.server.wrong = WRONG
    wrong.run()
    wrong.run()
    assert "(from spec.evaluator.template)" in wrong.said("Accepted")["message"]


def test_an_object_of_somebody_else_is_left_to_the_look_at_its_owner() -> None:
    """A dry run against it would find our selector wrong, which is not what is wrong."""
    there = world(RIGHT)
    where = path("StatefulSet", "demo", "tiny-us-east")
    there.server.children[where] = {
        "kind": "StatefulSet", "metadata": {"name": "tiny-us-east", "uid": "theirs"},
        "spec": {"template": {"metadata": {}}},
    }  # fmt: skip
    there.server.wrong = {}
    there.run()
    there.run()
    assert there.said("Accepted")["reason"] == "ChildrenRefused"
    assert path("StatefulSet", "demo", "tiny-eu-west") in there.server.children


CLASS = {"'priorityClassName': 'nope'": 'pods "x" is forbidden: no PriorityClass with name nope'}
NOPE = {"template": {"spec": {"priorityClassName": "nope"}}}


def test_a_template_of_which_no_pod_could_be_made_ends_no_pod_that_runs() -> None:
    """A StatefulSet is taken whatever its pods ask for; only a pod shows that they are refused."""
    running = World()
    running.run()
    running.server.wrong_pods = CLASS
    edit(running, NOPE)
    running.run()
    running.run()
    where = path("StatefulSet", "demo", "tiny-us-east")
    template = running.server.children[where]["spec"]["template"]
    assert "priorityClassName" not in template["spec"]
    accepted = running.said("Accepted")
    assert accepted["reason"] == "TemplateRefused"
    assert "its pods would be refused: pods" in accepted["message"]
    assert "no PriorityClass with name nope" in accepted["message"]


def test_of_a_new_job_a_pod_is_tried_too() -> None:
    wrong = world(NOPE)
    wrong.server.wrong_pods = CLASS
    wrong.run()
    wrong.run()
    assert not wrong.server.children
    assert wrong.said("Accepted")["reason"] == "TemplateRefused"


@pytest.mark.parametrize(
    "message",
    [
        'pods "x" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8',
        'admission webhook "pods.example.com" does not support dry run',
        'pods is forbidden: User "operator" cannot create resource "pods" in API group ""',
    ],
)
def test_what_is_no_mistake_in_the_template_is_left_to_the_controller(message: str) -> None:
    full = world(NOPE)
    full.server.wrong_pods = dict.fromkeys(CLASS, message)
    assert "apply StatefulSet tiny-us-east" in full.run()


ACCOUNTS = (
    "policy: running under the ServiceAccount 'default' is not allowed",
    "unable to validate against any security context constraint: [provider nonroot-v2:"
    " Forbidden: not usable by user or serviceaccount]",
)


@pytest.mark.parametrize("message", ACCOUNTS)
def test_what_a_policy_says_of_an_account_that_only_stands_in_is_no_mistake(message: str) -> None:
    stands_in = world(NOPE)
    stands_in.server.wrong_pods = dict.fromkeys(CLASS, message)
    assert "apply StatefulSet tiny-us-east" in stands_in.run()
    spec = {"priorityClassName": "nope", "serviceAccountName": "mine"}
    own = world({"template": {"spec": spec}})
    own.server.wrong_pods = dict.fromkeys(CLASS, message)
    assert own.run() == []


def test_where_the_jobs_own_account_is_there_its_pods_are_tried_with_it() -> None:
    running = World()
    running.run()
    running.server.wrong_pods = {"'tiny-learner'": "policy: this ServiceAccount may run no pods"}
    edit(running, RIGHT)
    assert "apply StatefulSet tiny-us-east" not in running.run()
    running.run()
    assert "this ServiceAccount may run no pods" in running.said("Accepted")["message"]


def test_of_a_new_job_each_pod_is_tried_once() -> None:
    """Its service accounts are not there yet, and that is known."""
    new = World(("evaluator", {}))
    new.run()
    assert sorted(new.server.tried) == [
        "tiny-eu-west-", "tiny-evaluator-", "tiny-syncer-0-", "tiny-us-east-",
    ]  # fmt: skip


def answering(found: World, error: ApiError) -> World:
    """Every dry run of a pod gets this answer."""

    async def refuse(pod: Any) -> None:
        raise error

    server: Any = found.server
    server.dry_run_pod = refuse
    return found


def test_a_webhook_that_is_away_is_waited_for_and_no_template_is_blamed() -> None:
    away = answering(World(), ApiError(500, 'failed calling webhook "pods.example.com"'))
    away.run()
    away.run()
    assert not away.server.children
    accepted = away.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "failed calling webhook" in accepted["message"]


def test_a_webhook_for_workloads_that_is_away_blames_no_template_either() -> None:
    away = world(NOPE)
    away.server.wrong = {"nope": 'Internal error occurred: failed calling webhook "sets.example"'}
    away.run()
    away.run()
    assert not away.server.children
    assert away.said("Accepted")["reason"] == "ChildrenRefused"


def test_a_busy_api_server_judges_no_template() -> None:
    busy = answering(World(), ApiError(429, "slow down", 3.0))
    with pytest.raises(ApiError, match="slow down"):
        busy.run()
    assert not busy.reconciler.memories[KEY].refused


def test_a_workload_that_was_made_again_in_the_meantime_is_not_refused() -> None:
    running = World()
    running.run()

    async def conflict(child: Any) -> None:
        raise ConflictError(409, "the UID in the precondition does not match")

    server: Any = running.server
    server.dry_run = conflict
    edit(running, RIGHT)
    assert "apply StatefulSet tiny-us-east" in running.run()
    assert not running.reconciler.memories[KEY].refused


def test_a_webhook_that_knows_no_dry_run_stops_no_job() -> None:
    found = world(NOPE)

    async def no_dry_run(child: Any) -> None:
        raise ApiError(400, 'admission webhook "x" does not support dry run')

    server: Any = found.server
    server.dry_run = server.dry_run_pod = no_dry_run
    assert "apply StatefulSet tiny-us-east" in found.run()


def test_the_others_take_their_edits_while_one_template_is_refused() -> None:
    running = World()
    running.run()
    running.server.wrong_pods = CLASS
    assert running.server.job is not None
    running.server.job["spec"]["evaluator"] = NOPE
    running.server.job["spec"]["learner"] = RIGHT
    wrote = running.run()
    assert "apply StatefulSet tiny-us-east" in wrote
    assert "apply Deployment tiny-evaluator" not in wrote


def test_a_change_of_numbers_alone_tries_nothing() -> None:
    running = World()
    running.run()
    running.server.wrong_pods = {"'containers'": "a webhook is down"}
    assert running.server.job is not None
    running.server.job["spec"]["regions"] = [{"name": "us-east", "learners": 5}]
    assert "apply StatefulSet tiny-us-east" in running.run()


def test_recommended_labels_of_the_user_stay_and_the_operators_own_do_not_change() -> None:
    given = "{app.kubernetes.io/name: mine, atoll.dev/role: wrong}"
    (one, *_) = [
        each
        for each in children(f"spec.learner.template.metadata.labels={given}").objects()
        if each["kind"] == "StatefulSet"
    ]
    labels = one["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "mine"
    assert labels["app.kubernetes.io/component"] == labels["atoll.dev/role"] == "learner"


def test_the_pod_that_is_tried_is_the_controllers_under_a_name_that_nobody_has() -> None:
    sets = [each for each in children().objects() if each["kind"] == "StatefulSet"]
    pod = pod_of(sets[0])
    template = sets[0]["spec"]["template"]
    assert pod["metadata"]["generateName"] == "tiny-us-east-"
    assert "name" not in pod["metadata"]
    assert pod["metadata"]["labels"] == template["metadata"]["labels"]
    assert pod["spec"]["serviceAccountName"] == "tiny-learner"
    assert pod["spec"]["containers"] == template["spec"]["containers"]
    own = "spec.learner.template.spec.serviceAccountName=mine"
    (named, *_) = [each for each in children(own).objects() if each["kind"] == "StatefulSet"]
    assert pod_of(named)["spec"]["serviceAccountName"] == "mine"


def test_the_pod_that_is_tried_has_a_controller() -> None:
    """A policy may refuse pods without one."""
    made = children().objects()
    for kind, owner in (("StatefulSet", "StatefulSet"), ("Deployment", "ReplicaSet")):
        first = next(each for each in made if each["kind"] == kind)
        (found,) = pod_of(first)["metadata"]["ownerReferences"]
        assert (found["apiVersion"], found["kind"]) == ("apps/v1", owner)
        assert found["controller"]
        assert found["uid"]


def seeks_controllers(found: World, then: str = "") -> World:
    """A webhook looks for the controller of each pod, as Kueue's does; of others it says `then`."""

    async def look(pod: Any) -> None:
        for owner in pod["metadata"].get("ownerReferences", ()):
            kind, name = owner["kind"], owner["name"]
            problem = f'{kind}.apps "{name}" not found'
            raise ApiError(403, f'webhook "mpod" denied the request: {problem}')
        if then:
            raise ApiError(403, then)

    server: Any = found.server
    server.dry_run_pod = look
    return found


def test_a_webhook_that_looks_for_the_controller_of_a_pod_stops_no_job() -> None:
    assert "apply StatefulSet tiny-us-east" in seeks_controllers(World()).run()
    policy = "policy: Pod must have an ownerReference"
    assert "apply StatefulSet tiny-us-east" in seeks_controllers(World(), policy).run()


def test_where_a_webhook_looks_for_controllers_mistakes_are_found_all_the_same() -> None:
    wrong = seeks_controllers(World(), 'pods "x" is forbidden: violates PodSecurity "restricted"')
    wrong.run()
    wrong.run()
    assert not wrong.server.children
    assert "violates PodSecurity" in wrong.said("Accepted")["message"]


def test_an_edit_tries_one_of_the_sets_of_a_region_and_no_other_one_of_it_is_touched() -> None:
    """They differ in their names alone: with many learners each would be two calls."""
    regions = [{"name": "us-east", "learners": 3}, {"name": "eu-west"}]
    hosts = {"hosts": 2}
    found = World(("learner", RIGHT | hosts), ("regions", regions))
    found.run()
    found.run()
    tried: list[str] = []
    server: Any = found.server

    async def note(child: Any) -> None:
        if child["kind"] == "StatefulSet":
            tried.append(child["metadata"]["name"])
        found.server.look_for_mistakes(child)

    server.dry_run = note
    found.server.wrong = WRONG
    edit(found, TYPO | hosts)
    assert not [each for each in found.run() if each.startswith("apply StatefulSet")]
    assert tried == ["tiny-us-east-0", "tiny-eu-west-0"]
    found.run()
    assert found.said("Accepted")["reason"] == "TemplateRefused"
    tried.clear()
    better = {"template": {"spec": {"containers": [{"name": "x", "image": "z"}]}}}
    edit(found, better | hosts)
    applied = [each for each in found.run() if each.startswith("apply StatefulSet")]
    assert tried == ["tiny-us-east-0", "tiny-eu-west-0"]
    assert len(applied) == 4


def test_a_job_that_is_created_suspended_is_told_of_its_mistake_before_it_starts() -> None:
    waits = World(("suspend", True), ("learner", TYPO))
    waits.server.wrong = WRONG
    waits.run()
    waits.run()
    assert not waits.server.children
    assert waits.said("Accepted")["reason"] == "TemplateRefused"
    edit(waits, RIGHT)
    waits.run()
    waits.run()
    assert waits.said("Accepted")["reason"] == "Valid"
    assert not waits.server.children
    tried = []

    async def note(child: Any) -> None:
        tried.append(child)

    server: Any = waits.server
    server.dry_run = note
    assert waits.run() == []
    assert not tried


def test_what_is_no_longer_refused_to_a_suspended_job_is_forgotten() -> None:
    waits = World(("suspend", True), ("learner", TYPO))
    waits.server.wrong = WRONG
    waits.run()
    waits.run()
    waits.server.wrong = {}  # such as a webhook that was wrong
    memory = waits.reconciler.memories[KEY]
    for key, each in memory.refused.items():
        memory.refused[key] = replace(each, again_at=0.0)
    waits.run()
    waits.run()
    assert waits.said("Accepted")["reason"] == "Valid"


def test_a_restarted_operator_does_not_forget_the_mistake_of_a_suspended_job() -> None:
    waits = World(("suspend", True), ("learner", TYPO))
    waits.server.wrong = WRONG
    waits.run()
    waits.run()
    waits.reconciler.memories.clear()
    for _ in range(2):
        waits.run()
        assert waits.said("Accepted")["reason"] == "TemplateRefused"
