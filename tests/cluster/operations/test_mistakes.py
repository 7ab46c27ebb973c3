"""Mistakes in a manifest are reported by name, the others train on, and the fix arrives.

Each mistake is made in a job of its own, and all at once: what is waited for are back-offs.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest

from cluster.conftest import a_namespace
from cluster.kubectl import Kubectl, until
from cluster.lab import roles
from cluster.person import Person

BOTH = ("us-east-0", "eu-west-0")
EU_WEST = "- {name: eu-west, learners: 1}"
CONTAINER = "          - name: learner\n"
CONTAINERS = "\n        containers:\n"
MOUNT = "            volumeMounts: [{name: light, mountPath: /light}]\n"
LIGHT = "{name: light, configMap: {name: light}}"
SYNCER = "syncer: {region: us-east, shards: 1}"
KEEPS = SYNCER.replace("1}", "1, storage: {type: PersistentVolumeClaim, size: 1Gi}}")
RESTRICTED = "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A text of the manifest and what a person makes of it; what is reported, and who trains on.

    Of an edit of all learners one region waits for the other, so that the quorum is kept.
    """

    right: str
    wrong: str
    reported: tuple[str, ...]
    train_on: tuple[str, ...] = ("eu-west-0",)
    condition: tuple[str, str] = ("Degraded", "True")

    @classmethod
    def in_eu_west(cls, overrides: str, *reported: str) -> "Mistake":
        """In one region: the other's pods are not touched."""
        wrong = f"- {{name: eu-west, learners: 1, podOverrides: {overrides}}}"
        reported = ("-eu-west-0", *reported)
        return cls(right=EU_WEST, wrong=wrong, reported=reported, train_on=("us-east-0",))


def image(role: str) -> str:
    return f"image: '{roles.name(role)}'"


MISTAKES = {
    "argument": Mistake.in_eu_west("{args: [--batch=-1]}", "exit code 64", "batch"),
    "secret": Mistake.in_eu_west(  # a kubelet looks only at volumes that a container mounts
        "{volumes: [{name: text, secret: {secretName: no-such-secret}}],"
        " volumeMounts: [{name: text, mountPath: /text}]}",
        "cannot start",
        "no-such-secret",
    ),
    "memory": Mistake.in_eu_west("{resources: {limits: {memory: 24Mi}}}", "OOMKilled"),
    "resources": Mistake.in_eu_west("{resources: {requests: {cpu: '4000'}}}", "Insufficient cpu"),
    "image": Mistake(
        right=CONTAINER,
        wrong=f"{CONTAINER}            image: atoll.test/no-such-image:1\n",
        reported=("no-such-image",),
    ),
    "claim": Mistake(
        right=LIGHT,
        wrong=f"{LIGHT}, {{name: text, persistentVolumeClaim: {{claimName: no-such-claim}}}}",
        reported=("no-such-claim",),
    ),
    "pod security": Mistake(
        right=CONTAINER,
        wrong=f"{CONTAINER}            securityContext: {{privileged: true}}\n",
        reported=("privileged",),
        train_on=BOTH,
        condition=("Accepted", "False"),
    ),
    "init container": Mistake(
        right=CONTAINERS,
        wrong=f"\n        initContainers: [{{name: fetch, {image('worker')}, {RESTRICTED},"
        f" command: [python3, -c, 'import sys; sys.exit(3)']}}]{CONTAINERS}",
        reported=("fetch",),
    ),
    "sidecar": Mistake(  # whose exit code is not the learner's
        right=MOUNT,
        wrong=f"{MOUNT}          - {{name: a-sidecar, {image('worker')}, {RESTRICTED},"
        " command: [python3, -c, 'import sys; sys.exit(64)']}\n",
        reported=("a-sidecar",),
        train_on=BOTH,
    ),
    "evaluator": Mistake(
        right=f"  {SYNCER}\n",
        wrong=f"  {SYNCER}\n  evaluator: {{everySteps: 50, template: {{spec: {{containers:"
        " [{name: evaluator, args: [--data=/no/such/folder]}]}}}\n",
        reported=("-evaluator", "/no/such/folder"),
        train_on=BOTH,
    ),
}
JOBS = (*MISTAKES, "typo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A job that is wrong from the beginning, under a quota of its namespace or without one."""

    right: str = ""
    wrong: str = ""
    quota: str = ""
    reported: tuple[str, ...]


WRONG = {
    "syncer's image": Wrong(
        right=SYNCER,
        wrong="syncer: {region: us-east, shards: 1, template: {spec: {containers:"
        " [{name: shard, image: atoll.test/no-such-syncer:1}]}}}",
        reported=("SyncerReady", "False", "no-such-syncer"),
    ),
    "quota of pods": Wrong(quota="pods=1", reported=("Degraded", "True", "quota")),
    "quota of services": Wrong(
        quota="count/services=0", reported=("Accepted", "False", "Service", "quota")
    ),
}


@pytest.fixture(scope="module")
def made(begun: dict[str, Person], kube: Kubectl) -> Iterator[dict[str, Person]]:
    """Return the people whose jobs train with a mistake, and those whose jobs began with one."""
    people = dict(begun)
    for name, mistake in MISTAKES.items():
        people[name].edits((mistake.right, mistake.wrong))
    with ExitStack() as stack:
        for name, each in WRONG.items():
            one = Person(kube=kube, namespace=stack.enter_context(a_namespace([kube])))
            people[name] = one
            if each.quota:
                one.types(f"kubectl create quota small --hard={each.quota}")
                until("it is counted, before which it refuses nothing", partial(_counts, one))
                one.applies()
            else:
                one.edits((each.right, each.wrong))
        yield people


def _counts(person: Person) -> bool:
    return bool(person.types("kubectl get quota small -o jsonpath={.status.hard}"))


def fixes(name: str, person: Person) -> None:
    """Make right what is wrong with a job, if that has not been done."""
    each = MISTAKES.get(name) or WRONG[name]
    if isinstance(each, Wrong) and each.quota:
        person.types("kubectl delete quota small --ignore-not-found")
    elif each.wrong in person.manifest:
        person.edits((each.wrong, each.right))


@pytest.mark.parametrize("name", WRONG)
def test_a_job_that_begins_wrong_is_reported(name: str, made: dict[str, Person]) -> None:
    """First of all: the longer a quota lasts, the longer controllers wait before they try again."""
    person = made[name]
    person.reads(*WRONG[name].reported)
    fixes(name, person)


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_reported_and_the_others_train_on(name: str, made: dict[str, Person]) -> None:
    mistake, person = MISTAKES[name], made[name]
    person.reads(*mistake.condition, *mistake.reported)
    person.goes_on(mistake.train_on)
    assert person.job.condition("Failed")["status"] == "False"
    fixes(name, person)


@pytest.mark.parametrize("name", [*MISTAKES, *WRONG])
def test_the_fix_arrives(name: str, made: dict[str, Person]) -> None:
    person = made[name]
    fixes(name, person)
    person.trains(2)
    person.reads("Accepted", "True")
    person.reads("Degraded", "False")
    assert person.job.condition("Failed")["status"] == "False"
    if name in MISTAKES and MISTAKES[name].right == EU_WEST:
        others = {pod: uid for pod, uid in person.pods.items() if "eu-west" not in pod}
        assert others.items() <= person.uids().items()


def test_a_typo_in_a_template_is_reported_what_runs_continues_and_the_fix_arrives(
    made: dict[str, Person],
) -> None:
    person = made["typo"]
    before = person.uids()
    typo = f"{CONTAINER}            imagePulPolicy: Never\n"
    done = person.kube.attempt(
        "-n", person.namespace, "apply", "-f", "-",
        stdin=person.manifest.replace(CONTAINER, typo),
    )  # fmt: skip
    if done.returncode == 0:  # not refused at once: then it is reported
        person.reads("Accepted", "False", "imagePulPolicy")
    else:
        assert "imagePulPolicy" in done.stderr
    person.goes_on(BOTH)
    person.applies()
    person.reads("Accepted", "True")
    assert person.uids() == before
