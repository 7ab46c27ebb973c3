"""The run file: round trip, hash, and errors that name the field and the remedy."""

import dataclasses
import json
from typing import Any

import pytest

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import TensorSpec
from atoll_protos.job.run_file import (
    Checkpoints,
    Fragments,
    GraceLimit,
    Merge,
    Quorum,
    Region,
    RunFile,
    Sync,
    first_difference,
    hash_of,
)
from atoll_protos.transfer.codecs import Wire

SYNC: dict[str, Any] = {  # another value of each field than its default
    "fragments": 23, "period": 25, "overlap": 3, "quorum": 2, "grace": False, "grace_safety": 0.7,
    "grace_limit": GraceLimit.OVERLAP, "merge": Merge.MEAN, "blend": 0.5,
    "outer_learning_rate": 0.6, "outer_momentum": 0.8, "wire_up": Wire.INT4,
    "wire_down": Wire.INT8, "lockstep": True, "mean_patterns": ("*.head",), "norm_limit": 4.0,
}  # fmt: skip


def minimal(**changed: Any) -> RunFile:
    given = {"job": "tiny", "regions": (Region(name="us", learners=2),), "steps": 100}
    return RunFile(**{**given, **changed})


def lockstep(quorum: int | Quorum, learners: int = 3, **changed: Any) -> RunFile:
    regions = (Region(name="us", learners=learners),)
    return minimal(sync=Sync(overlap=0, lockstep=True, quorum=quorum), regions=regions, **changed)


def document(**changed: Any) -> str:
    return json.dumps({**json.loads(minimal().to_json()), **changed})


def test_a_run_file_survives_its_json_and_fields_with_defaults_may_be_left_out() -> None:
    checkpoint = Checkpoints(url="s3://b/c", every=7, model=False)
    for file in (
        lockstep(Quorum.ALL, uid="x" * 36),
        minimal(sync=Sync(**SYNC), seed=2**53 - 1, checkpoint=checkpoint, evaluator_every=9),
        minimal(regions=(), steps=None, tokens=10**15, job="\udcff"),
    ):
        again = RunFile.from_json(file.to_json())
        assert again == file
        assert again.hash == file.hash
    text = '{"job": "tiny", "regions": [{"name": "us", "learners": 2}], "steps": 100}'
    assert RunFile.from_json(text) == minimal()


def test_the_hash_is_the_same_on_every_machine_and_for_ever() -> None:
    """A changed literal means that running jobs refuse learners of the new release."""
    assert minimal().hash == "4794626f1604c1081567855351fa8a3b23c934869e524c98596bb4651bdb2b81"
    word = lockstep(Quorum.ALL)
    assert word.hash == "d9291e3b0b6e00044a2f23ebdc026d17ff5a5922e0f5138522289b1d1f63e7cf"
    assert hash_of(word.must_equal) == word.hash
    hashes = {lockstep(2).hash, lockstep(3).hash, word.hash}  # two manifests of different numbers
    assert len(hashes) == 3


def test_length_and_who_takes_part_are_not_in_the_hash() -> None:
    """So learners come and go under every preset: a quorum of all is a word outside of it."""
    more = (Region(name="us", learners=7), Region(name="eu", learners=1))
    assert minimal(steps=999, regions=more).hash == minimal().hash
    assert len({lockstep(Quorum.ALL, learners).hash for learners in (0, 2, 3)}) == 1
    assert '"quorum": "all"' in lockstep(Quorum.ALL).to_json()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Sync)])
def test_every_setting_of_sync_is_in_the_hash(field: str) -> None:
    assert minimal(sync=Sync(**{field: SYNC[field]})).hash != minimal().hash


def test_seed_shards_and_job_are_in_the_hash() -> None:
    hashes = {minimal(**{k: v}).hash for k, v in {"seed": 1, "shards": 2, "job": "b"}.items()}
    assert len(hashes | {minimal().hash}) == 4


def test_auto_fragments_are_a_word_in_the_file_and_a_number_in_the_layout() -> None:
    file = minimal()
    assert file.sync.fragments is Fragments.AUTO
    assert '"fragments": "auto"' in file.to_json()
    assert RunFile.from_json(file.to_json()) == file
    mlp = [TensorSpec(name=n, shape=(8, 8), dtype="float32", merge="rda") for n in "abc"]
    assert file.layout(mlp).fragments == 3
    assert minimal(sync=Sync(period=2, overlap=1)).layout(mlp).fragments == 2
    assert minimal(shards=3).layout(mlp).fragments == 1
    assert minimal(sync=Sync(fragments=2)).layout(mlp).fragments == 2
    known = file.sync.with_fragments(3)
    assert known.fragment_count == 3
    assert known.with_fragments(3) is known
    assert dataclasses.replace(known, fragments=Fragments.AUTO) == file.sync


def test_all_learners_means_those_that_train_and_at_least_one_rule_10() -> None:
    everyone = lockstep(Quorum.ALL).sync
    assert [everyone.awaited(training) for training in (0, 1, 3, 9)] == [1, 1, 3, 9]
    three = lockstep(3).sync
    assert [three.awaited(training) for training in (0, 1, 3, 9)] == [1, 1, 3, 3]
    assert [Sync(quorum=2).awaited(training) for training in (0, 1, 3)] == [2, 2, 2]


def test_a_file_without_regions_takes_every_region_and_any_number_for_the_quorum() -> None:
    shards = minimal(regions=(), sync=Sync(quorum=7))
    assert RunFile.from_json(shards.to_json()) == shards
    assert shards.has_region("anywhere")
    assert minimal().has_region("us")
    assert not minimal().has_region("anywhere")
    regions = (Region(name="us-east", learners=2), Region(name="eu", learners=1))
    assert minimal(regions=regions).slots == ("us-east-0", "us-east-1", "eu-0")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"job": 7}, "run file: cannot be read (job: 7 is no str); write it again"),
        (
            {"regions": [{"name": "us"}]},
            "run file: cannot be read (regions: Region.__init__()",
        ),
        ({"regions": {}}, "run file: cannot be read (regions: {} is no list); write it again"),
        ({"shards": True}, "run file: cannot be read (shards: True is no int); write it again"),
        ({"sync": {"quorum": "most"}}, "run file: cannot be read (sync: quorum: 'most' is no int)"),
        ({"sync": {"blend": float("nan")}}, "run file: cannot be read (sync: blend: nan is no flo"),
        ({"sync": {"merge": "mean"}}, "run file: cannot be read (sync: merge: 'mean' is not a val"),
        ({"sync": {"wire_up": []}}, "run file: cannot be read (sync: wire_up: [] is not a valid"),
        ({"stpes": 1}, "stpes: is unknown; use the version of Atoll that wrote the run file"),
        ({"sync": {"period": 12, "alpha": 1}}, "sync.alpha: is unknown; use the version of Atoll"),
        (
            {"seed": "x" * 10**6},
            "run file: cannot be read (seed: 'xxxxxxxxxxxx...xxxxxxxxxxxxx'",
        ),
    ],
)
def test_a_file_of_another_version_is_refused_with_its_field(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as raised:
        RunFile.from_json(document(**changed))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "7" * 5000, "null", "[]", '"x"', "{}"])
def test_what_is_no_run_file_at_all_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^run file: "):
        RunFile.from_json(text)


NEWER = json.loads(minimal().must_equal)
NEWER["sync"]["novelty"] = 1


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        (minimal(steps=7).must_equal, None),
        (minimal(seed=7).must_equal, ("seed", 0, 7)),
        (minimal(shards=2).must_equal, ("shards", 1, 2)),
        (minimal(sync=Sync(period=30)).must_equal, ("sync.period", 24, 30)),
        (minimal(sync=Sync(wire_up=Wire.INT8)).must_equal, ("sync.wire_up", "bf16", "int8")),
        (json.dumps(NEWER), ("sync.novelty", None, 1)),  # one that another version knows
    ],
)
def test_the_first_difference_is_named_with_both_values(
    theirs: str, difference: tuple[str, Any, Any] | None
) -> None:
    found = first_difference(minimal(), theirs)
    assert (found and (found.field, found.mine, found.theirs)) == difference


@pytest.mark.parametrize("text", ["{", "[]", "7"])
def test_what_says_nothing_of_what_must_be_equal_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|is not a mapping"):
        first_difference(minimal(), text)
