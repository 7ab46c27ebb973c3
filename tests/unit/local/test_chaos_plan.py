"""A plan of faults: what it may say, what is drawn from it, and what is wrong with it."""

from itertools import pairwise
from typing import Any

import pytest
import yaml

from atoll_operator.local.chaos.plan import DrawnFault, FaultWord, drawn, read
from atoll_protos.errors import SpecError

SLOTS = ("us-east-0", "eu-west-0")
SHARDS = ("shard-0", "shard-1")


def faults(
    *entries: str, seed: int = 7, bucket: str = "", seconds: tuple[str, ...] = ()
) -> list[DrawnFault]:
    text = "\n".join([f"seed: {seed}", "faults:", *(f"  - {{{each}}}" for each in entries)])
    return drawn(read(text), SLOTS, SHARDS, bucket, seconds)


def test_every_word_of_a_plan_is_a_fault_in_seconds_and_bytes() -> None:
    found = faults(
        "at: 0s, kill: shard-1",
        "at: 1.5s, pause: us-east-0, for: 20s",
        "at: 2s, slowCpu: eu-west-0, to: 30%, for: 1m",
        "at: 3s, cut: [eu-west-0, shard-1], for: 500ms",
        "at: 4s, delay: 80ms, of: [eu-west-0, shard-1], for: 1s",
        "at: 5s, rate: 2MB/s, of: [eu-west-0, shard-1], for: 1s",
        "at: 6s, corrupt: 1 of 500, of: [eu-west-0, shard-1], for: 1s",
        "at: 7s, fillDisk: shard-0, for: 1s",
        "at: 8s, loseStore: shard-1, for: 1h",
        "at: 9s, emptyStore: shard-1",
        "at: 1m, flipByte: shard-1",
        "at: 1h, truncate: shard-1",
    )
    link: dict[str, Any] = {"target": "eu-west-0", "shard": "shard-1"}
    assert [each.word for each in found] == [*FaultWord]
    assert found[:7] == [
        DrawnFault(at=0.0, word=FaultWord.KILL, target="shard-1"),
        DrawnFault(at=1.5, word=FaultWord.PAUSE, target="us-east-0", seconds=20.0),
        DrawnFault(at=2.0, word=FaultWord.SLOW_CPU, target="eu-west-0", seconds=60.0, amount=0.3),
        DrawnFault(at=3.0, word=FaultWord.CUT, seconds=0.5, **link),
        DrawnFault(at=4.0, word=FaultWord.DELAY, seconds=1.0, amount=0.08, **link),
        DrawnFault(at=5.0, word=FaultWord.RATE, seconds=1.0, amount=2e6, **link),
        DrawnFault(at=6.0, word=FaultWord.CORRUPT, seconds=1.0, amount=500.0, **link),
    ]
    assert [each.at for each in found[7:]] == [7.0, 8.0, 9.0, 60.0, 3600.0]
    assert found[8].seconds == 3600.0
    assert str(found[4]) == "delay eu-west-0 - shard-1, 1 s"


def test_second_processes_of_shards_can_be_killed_and_have_no_store_of_their_own() -> None:
    seconds = ("shard-0-b", "shard-1-b")
    (named,) = faults("at: 1s, kill: shard-1-b", seconds=seconds)
    assert named.target == "shard-1-b"

    def hit(entry: str) -> set[str]:
        return {each.target for each in faults(f"every: 1s, until: 5m, {entry}", seconds=seconds)}

    assert hit("kill: any") == {*SLOTS, *SHARDS, *seconds}
    assert hit("pause: any shard, for: 1s") == {*SHARDS, *seconds}
    assert hit("emptyStore: any") == {*SHARDS}
    for entry in ("kill: shard-1-b", "emptyStore: shard-1-b"):
        with pytest.raises(SpecError, match="shard-1-b"):
            faults(f"at: 1s, {entry}", seconds=seconds if "Store" in entry else ())


def test_the_same_seed_draws_the_same_faults_and_an_entry_changes_no_other() -> None:
    often, other = "every: 20s..40s, until: 5m, kill: any", "every: 10s, until: 1m, pause: any"
    first = faults(often)
    assert first == faults(often)
    assert first != faults(often, seed=8)
    both = faults(often, f"{other} learner, for: 1s")
    assert [each for each in both if each.word is FaultWord.KILL] == first
    gaps = [later - earlier for earlier, later in pairwise([0.0, *(each.at for each in first)])]
    assert all(20 <= gap <= 40 for gap in gaps)
    assert first[-1].at <= 300 < first[-1].at + 40
    assert {each.at for each in both if each.word is FaultWord.PAUSE} == {10, 20, 30, 40, 50, 60}


def test_any_is_a_learner_or_a_shard_as_the_fault_allows() -> None:
    def targets(entry: str) -> set[str]:
        found = faults(f"every: 1s, until: 60s, {entry}")
        return {f"{each.target} {each.shard}".strip() for each in found}

    assert targets("kill: any") == {*SLOTS, *SHARDS}
    assert targets("pause: any learner, for: 1s") == {*SLOTS}
    assert targets("kill: any shard") == {*SHARDS}
    assert targets("truncate: any") == {*SHARDS}
    assert targets("cut: [any, any], for: 1s") == {f"{x} {y}" for x in SLOTS for y in SHARDS}
    assert targets("cut: [any learner, shard-1], for: 1s") == {f"{x} shard-1" for x in SLOTS}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("at: 3s", "plan.faults[0]: names no fault; give one of kill, pause, slowCpu"),
        ("at: 3s, kill: any, pause: any", "plan.faults[0]: names kill, pause; give one of"),
        ("at: 3s, kil: any", "plan.faults[0].kil: is unknown; did you mean kill?"),
        ("at: 3s, kill: us-west-0", "plan.faults[0].kill: this job has no us-west-0; did you"),
        ("at: 3s, kill: shard-2", "plan.faults[0].kill: this job has no shard-2; did you mean"),
        ("at: 3s, fillDisk: us-east-0, for: 1s", "[0].fillDisk: us-east-0 is no shard; name one"),
        ("at: 3s, truncate: any learner", "[0].truncate: any learner is no shard; name one"),
        ("at: 3, kill: any", "[0].at: must be a string, got 3; write it in quotes"),
        ("at: soon, kill: any", "[0].at: 'soon' is not understood; write it with its unit: 30s"),
        ("at: -3s, kill: any", "[0].at: '-3s' is not understood"),
        ("kill: any", "plan.faults[0]: has no time; give at: 30s, or every"),
        ("at: 3s, every: 4s, until: 9s, kill: any", "[0]: has both at and every; give at"),
        ("at: 3s, until: 9s, kill: any", "[0].until: means nothing beside at; use every"),
        ("every: 4s, kill: any", "[0].until: is missing; add until: 5m"),
        ("every: 9s..4s, until: 1m, kill: any", "[0].every: 9s is more than 4s; write 4s..9s"),
        ("every: 10ms..4s, until: 1m, kill: any", "[0].every: 10ms is too short; give 1s or more"),
        ("every: 9s, until: 5s, kill: any", "[0].until: 5s is before the first at 9s; make it"),
        ("every: 1s, until: 9h, kill: any", "[0].every: these are more than 10,000 faults"),
        ("at: 3s, pause: any", "plan.faults[0].for: is missing; add for: 20s"),
        ("at: 3s, pause: any, for: 0s", "[0].for: 0s is nothing; give more, as 30s"),
        ("at: 3s, kill: any, for: 3s", "[0].for: means nothing beside kill; remove it"),
        ("at: 3s, slowCpu: any, for: 3s", "[0].to: is missing; add to: 30%"),
        ("at: 3s, slowCpu: any, to: 100%, for: 3s", "[0].to: 100% is no slower; give less"),
        ("at: 3s, slowCpu: any, to: 0%, for: 3s", "[0].to: 0% is nothing; give more, as 30%"),
        ("at: 3s, pause: any, to: 5%, for: 3s", "[0].to: means nothing beside pause; remove it"),
        ("at: 3s, cut: us-east-0, for: 3s", "[0].cut: must be a list, got 'us-east-0'"),
        ("at: 3s, cut: [us-east-0], for: 3s", "[0].cut: must have at least 2 entries"),
        ("at: 3s, cut: [shard-1, us-east-0], for: 3s", "[0].cut[0]: shard-1 is no learner; name"),
        ("at: 3s, cut: [any, us-east-0], for: 3s", "[0].cut[1]: us-east-0 is no shard; name the"),
        ("at: 3s, cut: [any, shard-9], for: 3s", "[0].cut: this job has no shard-9; did you mean"),
        ("at: 3s, delay: 9ms, for: 3s", "[0].of: is missing; add of: [eu-west-0, shard-1]"),
        ("at: 3s, delay: 9ms, of: [x-0, any], for: 3s", "[0].of: this job has no x-0; remove it"),
        ("at: 3s, rate: 2Mb, of: [any, any], for: 3s", "[0].rate: '2Mb' is not understood; write"),
        ("at: 3s, corrupt: 1%, of: [any, any], for: 3s", "[0].corrupt: '1%' is no share of the"),
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
        ("seed: 5", "plan.faults: is missing; add it"),
        ("seed: -1\nfaults: [{at: 3s, kill: any}]", "plan.seed: must be at least 0, got -1"),
        ("sed: 1\nfaults: [{at: 3s, kill: any}]", "plan.sed: is unknown; did you mean seed?"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("word", ["fillDisk", "loseStore", "emptyStore", "flipByte", "truncate"])
def test_a_store_in_a_bucket_takes_no_fault(word: str) -> None:
    seconds = {"for": "1s"} if word in ("fillDisk", "loseStore") else {}
    text = yaml.safe_dump({"faults": [{"at": "1s", word: "any", **seconds}]})
    with pytest.raises(SpecError) as caught:
        drawn(read(text), SLOTS, SHARDS, "s3://here/there")
    assert str(caught.value) == (
        f"plan.faults[0].{word}: the state of shards is in s3://here/there, and only a folder can"
        " be damaged; remove it, or keep the state in files"
    )
    assert faults("at: 1s, kill: shard-0", bucket="s3://here/there")
