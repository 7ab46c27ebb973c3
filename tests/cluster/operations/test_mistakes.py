"""Mistakes in a manifest: said with the names that matter, the others train on, the fix arrives."""

import sys

import pytest

from cluster.kubectl import until
from cluster.person import JOB, Person
from cluster.training import Stopwatch

EU_WEST = "- {name: eu-west, learners: 1}"
CONTAINER = "          - name: learner\n"
SYNCER = "syncer: {region: us-east, shards: 1}"
OTHERS = ["us-east-0"]


def eu_west(overrides: str) -> str:
    return f"- {{name: eu-west, learners: 1, podOverrides: {overrides}}}"


def test_a_wrong_argument_and_a_missing_secret_in_one_region_are_said_and_the_fix_arrives(
    person: Person,
) -> None:
    before = person.starts()
    wrong = eu_west("{args: [--batch=-1]}")
    person.edits((EU_WEST, wrong))
    person.reads("Degraded", "True", "tiny-eu-west-0", "exit code 64", "batch")
    person.goes_on(OTHERS)
    assert person.job.condition("Failed")["status"] == "False"
    missing = eu_west(  # a kubelet looks only at volumes that a container mounts
        "{volumes: [{name: text, secret: {secretName: no-such-secret}}],"
        " volumeMounts: [{name: text, mountPath: /text}]}"
    )
    crashes, watch = person.uids()["tiny-eu-west-0"], Stopwatch()
    person.edits((wrong, missing))
    watch.until("made", lambda: person.uids().get("tiny-eu-west-0", crashes) != crashes)
    person.reads("Degraded", "True", "tiny-eu-west-0 cannot start", "no-such-secret")
    watch.until("said", lambda: True)
    sys.stderr.write(f"\nmissing Secret: {watch.laps}\n")
    person.edits((missing, EU_WEST))
    person.trains(2)
    person.reads("Degraded", "False")
    kept = {name: uid for name, uid in before.items() if name != "tiny-eu-west-0"}
    assert kept.items() <= person.uids().items()


def test_a_wrong_image_of_the_learners_is_said_and_its_fix_arrives(person: Person) -> None:
    person.starts()
    person.edits((CONTAINER, f"{CONTAINER}            image: atoll.test/no-such-image:1\n"))
    person.reads("Degraded", "True", "no-such-image")
    person.goes_on(["eu-west-0"])  # one region waits for the other: the quorum is kept
    person.edits(("            image: atoll.test/no-such-image:1\n", ""))
    person.trains(2)
    person.reads("Degraded", "False")


def test_a_wrong_image_of_the_syncer_is_said_and_its_fix_arrives(person: Person) -> None:
    right = person.manifest
    wrong = (
        "syncer: {region: us-east, shards: 1, template: {spec: {containers:"
        " [{name: shard, image: atoll.test/no-such-syncer:1}]}}}"
    )
    person.edits((SYNCER, wrong))
    person.reads("SyncerReady", "False", "no-such-syncer")
    person.edits((wrong, SYNCER))
    assert person.manifest == right
    person.trains(2)


@pytest.mark.long
def test_a_claim_that_is_not_there_is_said_and_its_fix_arrives(person: Person) -> None:
    claim = (
        "\n        volumes: [{name: text, persistentVolumeClaim: {claimName: no-such-claim}}]"
        "\n        containers:\n"
    )
    person.edits(("\n        containers:\n", claim))
    person.reads("Degraded", "True", "no-such-claim")
    person.edits((claim, "\n        containers:\n"))
    person.trains(2)


@pytest.mark.long
def test_a_storage_class_that_is_not_there_is_said_and_a_fixed_job_trains(person: Person) -> None:
    wrong = (
        "syncer: {region: us-east, shards: 1, storage: {type: PersistentVolumeClaim,"
        " size: 1Gi, storageClassName: no-such-class}}"
    )
    person.edits((SYNCER, wrong))
    person.reads("SyncerReady", "False", "no-such-class")
    person.types("kubectl delete dtj tiny")
    person.types("kubectl delete pvc -l atoll.dev/job=tiny")
    person.edits((", storageClassName: no-such-class", ""))
    person.trains(2)


def test_a_quota_that_forbids_pods_is_said_and_training_begins_when_it_is_raised(
    person: Person,
) -> None:
    person.types("kubectl create quota small --hard=pods=1")
    person.applies()
    person.reads("Degraded", "True", "quota")
    person.types("kubectl delete quota small")
    person.trains(2)


@pytest.mark.long
def test_a_quota_that_forbids_services_is_said(person: Person) -> None:
    person.types("kubectl create quota small --hard=count/services=0")
    person.applies()
    person.reads("Accepted", "False", "Service", "quota")
    person.types("kubectl delete quota small")
    person.trains(2)


def test_a_typo_in_a_template_is_said_what_runs_goes_on_and_the_fix_arrives(
    person: Person,
) -> None:
    before = person.starts()
    typo = f"{CONTAINER}            imagePulPolicy: Never\n"
    done = person.kube.attempt(
        "-n", person.namespace, "apply", "-f", "-",
        stdin=person.manifest.replace(CONTAINER, typo),
    )  # fmt: skip
    if done.returncode == 0:  # not refused at once: then it is said
        person.reads("Accepted", "False", "imagePulPolicy")
    else:
        assert "imagePulPolicy" in done.stderr
    person.goes_on(["us-east-0", "eu-west-0"])
    person.applies()
    person.reads("Accepted", "True")
    assert person.uids() == before


@pytest.mark.long
def test_a_template_that_pod_security_forbids_is_said_and_its_fix_arrives(person: Person) -> None:
    wrong = f"{CONTAINER}            securityContext: {{privileged: true}}\n"
    person.edits((CONTAINER, wrong))
    until(
        "PodSecurity is named",
        lambda: any(
            "privileged" in person.job.condition(kind).get("message", "")
            for kind in ("Accepted", "Degraded")
        ),
    )
    person.edits((wrong, CONTAINER))
    person.trains(2)


def test_an_evaluator_that_cannot_start_is_said_and_the_job_trains_on(person: Person) -> None:
    evaluator = (
        "  evaluator: {everySteps: 50, template: {spec: {containers:"
        " [{name: evaluator, args: [--data=/no/such/folder]}]}}}\n"
    )
    person.manifest += evaluator
    person.starts()
    person.reads("Degraded", "True", "tiny-evaluator", "/no/such/folder")
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.job.condition("Failed")["status"] == "False"
    person.edits((evaluator, ""))
    person.reads("Degraded", "False")


@pytest.mark.long
def test_a_sidecar_that_ends_is_named_and_its_exit_code_is_not_the_learners(
    person: Person, worker_image: str
) -> None:
    sidecar = (
        "          - name: a-sidecar\n"
        f"            image: {worker_image}\n"
        "            command: [python3, -c, 'import sys; sys.exit(64)']\n"
        "            securityContext:\n"
        "              allowPrivilegeEscalation: false\n"
        "              capabilities: {drop: [ALL]}\n"
    )
    person.manifest += sidecar
    person.starts()
    person.reads("Degraded", "True", "a-sidecar")
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.job.condition("Failed")["status"] == "False"


@pytest.mark.long
def test_an_init_container_that_fails_is_named_and_its_fix_arrives(
    person: Person, worker_image: str
) -> None:
    init = (
        f"\n        initContainers: [{{name: fetch, image: '{worker_image}',"
        " command: [python3, -c, 'import sys; sys.exit(3)'], securityContext:"
        " {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]"
        "\n        containers:\n"
    )
    person.edits(("\n        containers:\n", init))
    person.reads("Degraded", "True", "fetch")
    person.edits((init, "\n        containers:\n"))
    person.trains(2)


@pytest.mark.long
def test_a_learner_that_is_killed_for_its_memory_is_named_so_and_its_fix_arrives(
    person: Person,
) -> None:
    wrong = eu_west("{resources: {limits: {memory: 60Mi}}}")
    person.edits((EU_WEST, wrong))
    person.reads("Degraded", "True", "tiny-eu-west-0", "OOMKilled")
    person.goes_on(OTHERS)
    person.edits((wrong, EU_WEST))
    person.trains(2)


@pytest.mark.long
def test_resources_that_no_node_has_are_said_with_the_schedulers_words(person: Person) -> None:
    wrong = eu_west("{resources: {requests: {cpu: '4000'}}}")
    before = person.starts()
    person.edits((EU_WEST, wrong))
    person.reads("Degraded", "True", "tiny-eu-west-0", "Insufficient cpu")
    person.goes_on(OTHERS)
    person.edits((wrong, EU_WEST))
    person.trains(2)
    assert person.uids()["tiny-us-east-0"] == before["tiny-us-east-0"]


def test_a_failed_job_that_is_deleted_and_applied_again_fixed_trains(person: Person) -> None:
    wrong, right = "args: [--batch=-1, --context=64", "args: [--batch=2, --context=64"
    person.edits((right, wrong))
    person.reads("Failed", "True", "BadInput", "exit code 64")
    person.types(f"kubectl delete dtj {JOB} --wait=false")
    until("it is deleted", lambda: "tiny" not in person.types("kubectl get dtj -o name"))
    person.edits((wrong, right))
    person.trains(2)
    assert person.job.condition("Failed")["status"] == "False"


@pytest.mark.long
def test_a_failed_job_is_lifted_by_the_edit_that_fixes_it(person: Person) -> None:
    wrong, right = "args: [--batch=-1, --context=64", "args: [--batch=2, --context=64"
    person.edits((SYNCER, SYNCER.replace(
        "shards: 1", "shards: 1, storage: {type: PersistentVolumeClaim, size: 1Gi}"
    )), (right, wrong))  # fmt: skip
    person.reads("Failed", "True", "BadInput")
    person.edits((wrong, right))
    person.trains(2)
    person.reads("Failed", "False")


@pytest.mark.long
def test_a_training_job_that_is_deleted_and_applied_again_starts_another_run(
    person: Person,
) -> None:
    person.starts()
    run = person.run()
    person.types("kubectl delete dtj tiny --wait=false")
    until("it is deleted", lambda: "tiny" not in person.types("kubectl get dtj -o name"))
    person.applies()
    person.trains(2)
    assert person.run() != run


@pytest.mark.long
def test_a_new_job_carries_on_what_a_deleted_one_has_kept(person: Person) -> None:
    kept = SYNCER.replace(
        "shards: 1", "shards: 1, storage: {type: PersistentVolumeClaim, size: 1Gi}"
    )
    person.edits((SYNCER, kept))
    person.trains(2)
    until("some versions", lambda: len(person.job.commits()) > 8)
    run, reply = person.run(), person.job.status()
    assert reply is not None
    person.types(f"kubectl delete dtj {JOB} --wait=false")
    until("it is deleted", lambda: "tiny" not in person.types("kubectl get dtj -o name"))
    person.edits(
        (kept, f"{kept}\n  restore: {{fromJob: {{name: tiny}}}}"),
        ("--batch=2", "--batch=3"),  # what was wrong is fixed
    )
    person.trains(2)
    assert person.run() == run
    again = person.job.status()
    assert again is not None
    assert again.tick >= reply.tick
    assert again.commits >= reply.commits
