"""A plan of faults: what it may say, and what is wrong with it."""

import pytest

from atoll_operator.local.chaos import Fault, FaultKind, read_plan
from atoll_protos.errors import SpecError

SLOTS = ("us-east-0", "eu-west-0")
SHARDS = ("shard-0", "shard-1")


def faults(*entries: str) -> list[Fault]:
    return read_plan(
        "\n".join(["faults:", *(f"  - {{{each}}}" for each in entries)]), SLOTS, SHARDS
    )


def test_the_faults_of_a_plan_are_in_the_order_of_their_times() -> None:
    found = faults(
        "at: 3600, cut: [eu-west-0, shard-1], for: 0.5",
        "at: 1.5, pause: us-east-0, for: 20",
        "at: 0, kill: shard-1",
    )
    assert found == [
        Fault(at=0.0, kind=FaultKind.KILL, target="shard-1"),
        Fault(at=1.5, kind=FaultKind.PAUSE, target="us-east-0", seconds=20.0),
        Fault(at=3600.0, kind=FaultKind.CUT, target="eu-west-0", shard="shard-1", seconds=0.5),
    ]
    assert str(found[2]) == "cut eu-west-0 - shard-1, 0.5 s"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("at: 3", "plan.faults[0]: names no fault; give one of kill, pause, cut"),
        ("at: 3, kill: us-east-0, pause: us-east-0", "plan.faults[0]: names kill, pause; give"),
        ("at: 3, kil: us-east-0", "plan.faults[0].kil: is unknown; did you mean kill?"),
        ("at: 3, kill: us-west-0", "plan.faults[0].kill: this job has no us-west-0; did you"),
        ("at: 3, kill: shard-2", "plan.faults[0].kill: this job has no shard-2; did you mean"),
        ("at: soon, kill: shard-0", "[0].at: must be a number, got 'soon'; write it in seconds"),
        ("at: 3s, kill: shard-0", "[0].at: must be a number, got '3s'; write it in seconds"),
        ("at: -3, kill: shard-0", "[0].at: must be at least 0"),
        ("at: .inf, kill: shard-0", "[0].at: must be at most"),
        ("at: .nan, kill: shard-0", "[0].at: must be at most"),
        ("kill: shard-0", "plan.faults[0].at: is missing; add it"),
        ("at: 3, pause: shard-0", "plan.faults[0].for: is missing; add for: 20"),
        ("at: 3, pause: shard-0, for: 0", "plan.faults[0].for: is missing; add for: 20"),
        ("at: 3, kill: shard-0, for: 3", "[0].for: means nothing beside kill; remove it"),
        ("at: 3, cut: us-east-0, for: 3", "[0].cut: must be a list, got 'us-east-0'"),
        ("at: 3, cut: [us-east-0], for: 3", "[0].cut: must have at least 2 entries"),
        ("at: 3, cut: [shard-1, us-east-0], for: 3", "[0].cut: this job has no shard-1"),
        ("at: 3, cut: [us-east-0, shard-9], for: 3", "[0].cut: this job has no shard-9; did you"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said_with_its_field_and_the_remedy(
    entry: str, said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        faults(entry)
    assert said in str(caught.value)
    assert str(caught.value).startswith("plan.faults[0]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("faults: [", "plan: is not YAML"),
        ("30s", "plan: must be a mapping, got '30s'; give it named fields"),
        ("faults: []", "plan.faults: must have at least 1 entries, got []; add some"),
        ("{}", "plan.faults: is missing; add it"),
        ("fault: [{at: 3, kill: shard-0}]", "plan.faults: is missing"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_plan(text, SLOTS, SHARDS)
    assert str(caught.value).startswith(said)
