"""The run file: round trip, hash, and errors that name the field and the remedy."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import TensorSpec
from atoll_protos.job.run_file import (
    Fragments,
    GraceLimit,
    Merge,
    Momentum,
    Quorum,
    Region,
    RunFile,
    Sync,
    first_difference,
    hash_of,
)
from atoll_protos.names import REGION_PATTERN
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire

NAMES = st.from_regex(REGION_PATTERN, fullmatch=True)
SHARES = st.floats(0, 1, exclude_min=True, exclude_max=True)


@st.composite
def syncs(draw: st.DrawFn) -> Sync:
    period = draw(st.integers(1, 200))
    overlap = draw(st.integers(0, period - 1))
    lockstep = overlap == 0 or draw(st.booleans())
    return Sync(
        fragments=draw(st.integers(1, period)),
        period=period,
        overlap=overlap,
        grace=draw(st.booleans()),
        grace_safety=draw(SHARES),
        grace_limit=draw(st.sampled_from(GraceLimit)),
        merge=draw(st.sampled_from(Merge)),
        blend=draw(SHARES),
        outer_learning_rate=draw(SHARES),
        outer_momentum=draw(SHARES | st.sampled_from(Momentum)),
        wire_up=draw(st.sampled_from(Wire)),
        wire_down=draw(st.sampled_from(WIRES_DOWN)),
        lockstep=lockstep,
        quorum=draw(st.sampled_from(Quorum)) if lockstep and draw(st.booleans()) else 1,
        mean_patterns=tuple(draw(st.lists(st.text()))),
        norm_limit=draw(st.just(0.0) | st.floats(1.5, 100.0)),
    )


@st.composite
def run_files(draw: st.DrawFn) -> RunFile:
    regions = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return RunFile(
        job=draw(st.text(min_size=1)),
        regions=tuple(Region(name=name, learners=draw(st.integers(1, 9))) for name in regions),
        shards=draw(st.integers(1, 99)),
        seed=draw(st.integers(0, 2**63 - 1)),
        steps=draw(st.integers(1)),
        sync=draw(syncs()),
        evaluator_every=draw(st.none() | st.integers(1)),
    )


def minimal(**changed: Any) -> RunFile:
    given = {"job": "tiny", "regions": (Region(name="us", learners=2),), "steps": 100}
    return RunFile(**{**given, **changed})


def lockstep(quorum: int | Quorum, learners: int = 3, **changed: Any) -> RunFile:
    regions = (Region(name="us", learners=learners),)
    return minimal(sync=Sync(overlap=0, lockstep=True, quorum=quorum), regions=regions, **changed)


def document(**changed: Any) -> str:
    return json.dumps({**json.loads(minimal().to_json()), **changed})


@given(run_files())
def test_a_run_file_survives_its_json(run_file: RunFile) -> None:
    again = RunFile.from_json(run_file.to_json())
    assert again == run_file
    assert again.hash == run_file.hash


def test_fields_with_defaults_may_be_left_out() -> None:
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
    other: dict[str, Any] = {
        "fragments": 23, "period": 25, "overlap": 3, "quorum": 2, "grace": False,
        "grace_safety": 0.7, "grace_limit": GraceLimit.OVERLAP, "merge": Merge.MEAN,
        "blend": 0.5, "outer_learning_rate": 0.6, "outer_momentum": 0.8, "wire_up": Wire.INT4,
        "wire_down": Wire.INT8, "lockstep": True, "mean_patterns": ("*.head",), "norm_limit": 4.0,
    }  # fmt: skip
    assert minimal(sync=Sync(**{field: other[field]})).hash != minimal().hash


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
    ("changed", "field", "remedy"),
    [
        ({"job": 7}, "job", "give a string"),
        ({"job": ""}, "job", "give the job's name"),
        ({"regions": {}}, "regions", "give a list"),
        ({"regions": [7]}, "regions[0]", "give a mapping"),
        ({"regions": [{"name": "us"}]}, "regions[0].learners", "give it"),
        ({"regions": [{"name": "us", "learners": "2"}]}, "regions[0].learners", "whole number"),
        ({"regions": [{"name": "us", "learners": 1e9}]}, "regions[0].learners", "whole number"),
        ({"regions": [{"name": "us", "learners": 10**9}]}, "regions.us.learners", "0..10000"),
        ({"regions": [{"name": "U S", "learners": 1}]}, "regions.name", "lower-case"),
        ({"regions": [{"name": "us", "learners": 1}] * 2}, "regions", "name each once"),
        ({"shards": 0}, "shards", "use 1 or more"),
        ({"shards": True}, "shards", "whole number"),
        ({"seed": -1}, "seed", "use 0.."),
        ({"steps": None}, "steps", "exactly one of steps and tokens"),
        ({"tokens": 5}, "steps", "exactly one of steps and tokens"),
        ({"steps": 0}, "steps", "use 1 or more"),
        ({"evaluator_every": 0}, "evaluator_every", "use 1 or more"),
        ({"stpes": 1}, "stpes", "remove it; known: job, regions,"),
        ({"sync": {"quorum": 3}}, "sync.quorum", "number of learners"),
        ({"sync": {"quorum": 0}}, "sync.quorum", "use 1 or more"),
        ({"sync": {"quorum": "all"}}, "sync.quorum", "give a number"),
        ({"sync": {"quorum": "most"}}, "sync.quorum", "whole number"),
        ({"sync": {"quorum": None}}, "sync.quorum", "whole number"),
        ({"sync": {"fragments": 0}}, "sync.fragments", "use 1 or more"),
        ({"sync": {"fragments": 25}}, "sync.fragments", "at most sync.period"),
        ({"sync": {"overlap": 24}}, "sync.overlap", "less than sync.period"),
        ({"sync": {"overlap": 0}}, "sync.lockstep", "set it"),
        ({"sync": {"grace": 1}}, "sync.grace", "true or false"),
        ({"sync": {"grace_safety": 1}}, "sync.grace_safety", "less than 1"),
        ({"sync": {"blend": float("nan")}}, "sync.blend", "less than 1"),
        ({"sync": {"norm_limit": 0.5}}, "sync.norm_limit", "more than 1"),
        ({"sync": {"blend": "0.5"}}, "sync.blend", "give a number"),
        ({"sync": {"outer_learning_rate": float("inf")}}, "sync.outer_learning_rate", "0.7"),
        ({"sync": {"outer_learning_rate": 10**400}}, "sync.outer_learning_rate", "number"),
        ({"sync": {"outer_momentum": 1.0}}, "sync.outer_momentum", "less than 1"),
        ({"sync": {"outer_momentum": "none"}}, "sync.outer_momentum", "number"),
        ({"sync": {"merge": "mean"}}, "sync.merge", "use one of RadialDirectional, Mean"),
        ({"sync": {"wire_up": []}}, "sync.wire_up", "use one of f32, bf16, int8, int4, int2"),
        ({"sync": {"wire_down": "int2"}}, "sync.wire_down", "use int4"),
        ({"sync": {"mean_patterns": ["a", 1]}}, "sync.mean_patterns[1]", "give a string"),
        ({"sync": {"period": 12, "alpha": 1}}, "sync.alpha", "remove it"),
        ({"sync": None}, "sync", "give a mapping"),
    ],
)
def test_a_bad_field_is_named_with_its_remedy(
    changed: dict[str, Any], field: str, remedy: str
) -> None:
    with pytest.raises(SpecError) as raised:
        RunFile.from_json(document(**changed))
    assert raised.value.field == field
    assert remedy in raised.value.remedy


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "7" * 5000, "null", "[]", '"x"'])
def test_what_is_no_run_file_at_all_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^run file: "):
        RunFile.from_json(text)


def test_a_field_given_twice_is_refused_and_a_long_value_does_not_flood_the_message() -> None:
    with pytest.raises(SpecError, match=r"^job: is given twice"):
        RunFile.from_json('{"job": "a", "job": "b"}')
    with pytest.raises(SpecError, match=r"^.{,500}$"):
        RunFile.from_json(document(seed="x" * 10**6))


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
