"""Edits of a running job that a person makes every day: no pod restarts that need not."""

from cluster.kubectl import until
from cluster.person import Person

EU_WEST = "- {name: eu-west, learners: 1}"
ARGUMENTS = "args: [--batch=2, --context=64, --step-milliseconds-min=300]"
JOBS = ("lengths", "arguments", "selector")


def test_another_number_of_steps_and_other_limits_restart_nobody(
    begun: dict[str, Person],
) -> None:
    person = begun["lengths"]
    before, reply = person.uids(), person.job.answer()
    person.types("""kubectl patch dtj lengths --type=merge -p '{"spec": {"steps": 1000000}}'""")
    until("the shard knows the typo", lambda: steps_of(person) == 1_000_000)
    person.edits(("steps: 100000", "steps: 200000\n  activeDeadlineSeconds: 86400"))
    person.types(
        "kubectl patch dtj lengths --type=merge"
        """ -p '{"spec": {"ttlSecondsAfterFinished": 60, "failure": {"nodeLossSeconds": 25}}}'"""
    )
    until("the shard knows the new length", lambda: steps_of(person) == 200_000)
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.uids() == before
    now = person.job.answer()
    assert (now.run, now.steps) == (reply.run, 200000)


def steps_of(person: Person) -> int:
    """The length that the shard knows of."""
    reply = person.job.status()
    return reply.steps if reply else 0


def test_arguments_of_the_learners_roll_out_and_nothing_else_restarts(
    begun: dict[str, Person],
) -> None:
    person = begun["arguments"]
    shards, before = person.uids("shard"), person.uids("learner")
    person.edits((ARGUMENTS, ARGUMENTS.replace("--batch=2", "--batch=3")))
    person.makes_again(before)
    person.trains(2)
    assert person.uids("shard") == shards


def test_a_node_selector_narrows_the_region_and_does_not_replace_it(
    begun: dict[str, Person],
) -> None:
    person = begun["selector"]
    of = (
        "- {name: eu-west, learners: 1, podOverrides: {nodeSelector: {kubernetes.io/hostname: %s}}}"
    )
    person.edits((EU_WEST, of % "c1-us-east-1"))
    person.trains(1)  # the other region's
    person.reads("Degraded", "True", "selector-eu-west-0", "node")
    assert person.job.node_of("selector-eu-west-0") == ""
    person.edits((of % "c1-us-east-1", of % "c1-eu-west-3"))
    person.trains(2)
    assert person.job.node_of("selector-eu-west-0") == "c1-eu-west-3"
