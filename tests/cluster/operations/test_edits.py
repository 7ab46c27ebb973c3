"""Edits of a running job that a person makes every day: nobody restarts who need not."""

import pytest

from cluster.kubectl import until
from cluster.person import Person

EU_WEST = "- {name: eu-west, learners: 1}"
ARGUMENTS = "args: [--batch=2, --context=64, --step-milliseconds-min=300]"
SYNC = "sync: {fragments: 4, period: 16, overlap: 2, quorum: 1}"
SYNCER = "syncer: {region: us-east, shards: 1}"


@pytest.mark.long  # test_changes has two of them
@pytest.mark.parametrize("preset", ["DiLoCo", "StreamingDiLoCo", "DecoupledDiLoCo"])
def test_a_learner_more_and_a_learner_less_restarts_nobody_under(
    preset: str, person: Person
) -> None:
    person.manifest = person.manifest.replace(
        SYNC, f"sync: {{preset: {preset}, fragments: 4, period: 16}}"
    )
    before = person.starts()
    person.edits((EU_WEST, "- {name: eu-west, learners: 2}"))
    person.trains(3)
    person.goes_on(["us-east-0", "eu-west-0", "eu-west-1"])
    assert before.items() <= person.uids().items()
    person.edits(("- {name: eu-west, learners: 2}", EU_WEST))
    until("the third is gone", lambda: person.uids() == before)
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.job.condition("Failed")["status"] == "False"


@pytest.mark.long
def test_a_region_comes_and_goes_and_restarts_nobody(person: Person) -> None:
    before = person.starts()
    person.edits((EU_WEST, f"{EU_WEST}\n    - {{name: ap-south, learners: 1}}"))
    person.trains(3)
    assert before.items() <= person.uids().items()
    person.edits(("    - {name: ap-south, learners: 1}\n", ""))
    until("the region is gone", lambda: person.uids() == before)
    person.goes_on(["us-east-0", "eu-west-0"])


@pytest.mark.long
def test_a_region_in_front_of_the_others_is_refused_until_the_syncers_is_named(
    person: Person,
) -> None:
    person.manifest = person.manifest.replace(SYNCER, "syncer: {shards: 1}")
    before = person.starts()
    in_front = ("regions:\n", "regions:\n    - {name: ap-south, learners: 1}\n")
    words = "kubectl apply -f -"
    assert "spec.syncer.region" in person.is_refused(words, person.manifest.replace(*in_front))
    person.edits(("syncer: {shards: 1}", SYNCER), in_front)
    person.trains(3)
    assert before.items() <= person.uids().items()


def test_another_number_of_steps_and_other_limits_restart_nobody(person: Person) -> None:
    person.starts()
    before, reply = person.uids(), person.job.status()
    assert reply is not None
    person.types("""kubectl patch dtj tiny --type=merge -p '{"spec": {"steps": 1000000}}'""")
    until("the shard knows the typo", lambda: steps_of(person) == 1_000_000)
    person.edits(("steps: 100000", "steps: 200000\n  activeDeadlineSeconds: 86400"))
    person.types(
        "kubectl patch dtj tiny --type=merge"
        """ -p '{"spec": {"ttlSecondsAfterFinished": 60, "failure": {"nodeLossSeconds": 25}}}'"""
    )
    until("the shard knows the new length", lambda: steps_of(person) == 200_000)
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.uids() == before
    now = person.job.status()
    assert now is not None
    assert (now.run, now.steps) == (reply.run, 200000)


def steps_of(person: Person) -> int:
    """The length that the shard knows of."""
    reply = person.job.status()
    return reply.steps if reply else 0


def test_other_settings_are_refused_with_the_field_and_a_length_that_has_passed_ends_the_job(
    person: Person,
) -> None:
    before = person.starts()
    other = person.is_refused(
        """kubectl patch dtj tiny --type=merge -p '{"spec": {"sync": {"period": 32}}}'"""
    )
    assert "spec.sync" in other
    assert person.uids() == before
    until("the clock runs", lambda: (s := person.job.status()) is not None and s.tick > 10)
    person.types("""kubectl patch dtj tiny --type=merge -p '{"spec": {"steps": 10}}'""")
    person.reads("Complete", "True")


@pytest.mark.long
def test_arguments_of_the_learners_roll_out_and_nothing_else_restarts(person: Person) -> None:
    before = person.starts()
    person.edits((ARGUMENTS, ARGUMENTS.replace("--batch=2", "--batch=3")))
    learners = {"tiny-us-east-0", "tiny-eu-west-0"}

    def rolled() -> bool:
        now = person.uids()
        return all(now.get(name, before[name]) != before[name] for name in learners)

    until("both are made again", rolled)
    person.trains(2)
    shards = before.keys() - learners
    assert {name: person.uids()[name] for name in shards} == {name: before[name] for name in shards}


@pytest.mark.long
def test_suspend_and_resume_by_patch_keep_the_run(person: Person) -> None:
    person.starts()
    run = person.run()
    person.types("""kubectl patch dtj tiny --type=merge -p '{"spec": {"suspend": true}}'""")
    person.reads("Suspended", "True")
    assert not person.uids("learner")
    person.types("""kubectl patch dtj tiny --type=merge -p '{"spec": {"suspend": false}}'""")
    person.trains(2)
    until("the same run", lambda: person.run() == run)


@pytest.mark.long
def test_empty_values_as_helm_renders_them_are_as_if_they_were_not_there(person: Person) -> None:
    person.manifest = person.manifest.replace(
        "      spec:\n",
        "      metadata: {labels: , annotations: }\n"
        "      spec:\n        nodeSelector:\n        tolerations:\n        affinity:\n"
        "        volumes:\n        securityContext:\n",
    )
    person.starts()
    assert person.job.condition("Accepted")["status"] == "True"


@pytest.mark.long
def test_a_node_selector_narrows_the_region_and_does_not_replace_it(person: Person) -> None:
    person.manifest = person.manifest.replace(
        EU_WEST,
        "- {name: eu-west, learners: 1,"
        " podOverrides: {nodeSelector: {kubernetes.io/hostname: c1-us-east-1}}}",
    )
    person.applies()
    person.trains(1)  # the other region's
    person.reads("Degraded", "True", "tiny-eu-west-0", "node")
    assert person.job.node_of("tiny-eu-west-0") == ""
    person.edits(("kubernetes.io/hostname: c1-us-east-1", "kubernetes.io/hostname: c1-eu-west-3"))
    person.trains(2)
    assert person.job.node_of("tiny-eu-west-0") == "c1-eu-west-3"
