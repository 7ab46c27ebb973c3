"""Which limit is the tightest, and which setting would help most."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.job.spec import Spec
from atoll_operator.sizing.advice import Option, limits, options, together
from unit.sizing.cases import given, spec_of

FAST = {"shards": 8}


def named(found: tuple[Option, ...]) -> dict[str, Option]:
    return {each.setting: each for each in found}


def test_a_link_that_is_too_narrow_is_named_with_a_period_that_holds() -> None:
    spec = spec_of({"us": 1, "eu": 2}, sync={"overlap": 6}, syncer=FAST)
    tight = given({"eu": (1.0, 0.01)})
    first, *_ = limits(spec, tight)
    assert first.said.startswith("eu: 133% of its link on average")
    found = named(options(spec, tight))["spec.sync.period from 24 to 40"]
    assert found.holds
    assert found.used == pytest.approx(1)
    wider = spec_of({"us": 1, "eu": 2}, sync={"overlap": 6, "period": 39}, syncer=FAST)
    assert limits(wider, tight)[0].used > 1


def test_a_way_that_the_overlap_does_not_hide_is_named_with_one_that_does() -> None:
    spec = spec_of({"us": 1, "eu": 1}, syncer=FAST)
    slow = given({"eu": (2.0, 2.0)})
    first, *_ = limits(spec, slow)
    assert "the overlap hides 2 s, so work comes too late" in first.said
    found = named(options(spec, slow))
    assert found["spec.sync.overlap from 2 to 4"].holds
    assert "spec.sync.period from 24 to 48" not in found


def test_an_overlap_stays_below_the_period() -> None:
    spec = spec_of({"us": 1, "eu": 1}, syncer=FAST)
    found = named(options(spec, given({"eu": (2.0, 20.0)})))
    assert not found["spec.sync.overlap from 2 to 23"].holds


def test_settings_that_hold_together_are_named_where_one_is_not_enough() -> None:
    """A line that is too narrow and too long, and shards that are too few."""
    spec = spec_of({"us": 1, "eu": 1}, syncer={"shards": 1}, sync={"wire": {"down": "int8"}})
    lines = replace(given({"eu": (0.5, 3.0)}), step_seconds=0.4)
    assert limits(spec, lines)[0].used > 1
    assert not any(each.holds for each in options(spec, lines))
    found = together(spec, lines)
    assert len(found) > 1
    for words in found:
        spec = changed(spec, words)
    assert limits(spec, lines)[0].used <= 1


def changed(spec: Spec, words: str) -> Spec:
    """As a person does what the advice says: `spec.sync.period from 24 to 40`."""
    document = spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    path, *rest = words.split()
    _, section, field = path.split(".")
    if field == "wire":
        document["sync"]["wire"] = {"up": rest[1].strip(","), "down": rest[3]}
    else:
        document[section][field] = int(rest[-1])
    return Spec.model_validate(document)


def test_what_holds_comes_first_and_then_what_helps_most() -> None:
    spec = spec_of({"us": 2, "eu": 2}, syncer=FAST, sync={"overlap": 6})
    found = options(spec, given({"eu": (1.0, 0.01)}))
    assert [each.holds for each in found] == sorted((each.holds for each in found), reverse=True)
    assert found[0].holds
    assert found[0].used == min(each.used for each in found)
    assert "spec.sync.wire" in found[0].setting


@pytest.mark.parametrize(
    ("rate", "tried", "holds"),
    [(0.6, ["int8"], ["int8"]), (0.3, ["int2", "int4", "int8"], ["int2"])],
)
def test_number_formats_get_shorter_until_one_holds(
    rate: float, tried: list[str], holds: list[str]
) -> None:
    """A link that has room for int8 is no reason to round to int2."""
    spec = spec_of({"us": 1, "eu": 1}, syncer=FAST, sync={"overlap": 23})
    found = [x for x in options(spec, given({"eu": (rate, 0.0)})) if "sync.wire" in x.setting]
    up = {x.setting.split()[2].strip(","): x.holds for x in found}
    assert sorted(up) == tried
    assert [wire for wire in up if up[wire]] == holds


def test_of_a_job_that_holds_the_longest_format_that_gains_something_is_named() -> None:
    """int4 up alone leaves what comes down, which is as much."""
    wire = {"up": "int8", "down": "int8"}
    spec = spec_of({"us": 1, "eu": 1}, syncer=FAST, sync={"overlap": 23, "wire": wire})
    found = [each.setting for each in options(spec, given({"eu": (0.6, 0.0)}))]
    assert [each for each in found if "sync.wire" in each] == ["spec.sync.wire up int2, down int4"]


def test_the_shards_go_where_most_learners_are() -> None:
    """Two learners over the line of the syncer's region, or eight."""
    spec = spec_of({"us": 2, "eu": 8}, syncer={**FAST, "region": "us"}, sync={"overlap": 8})
    lines = given({"us": (10.0, 0.0), "eu": (10.0, 0.1)})
    before = limits(spec, lines)[0].used
    assert named(options(spec, lines))["spec.syncer.region eu"].used < before / 2


def test_the_way_to_another_region_is_at_most_the_way_over_the_old_one() -> None:
    spec = spec_of({"us": 1, "eu": 2, "asia": 1}, syncer=FAST)
    lines = given({"us": (50.0, 0.0), "eu": (50.0, 0.5), "asia": (50.0, 1.2)})
    found = named(options(spec, lines))
    assert "spec.syncer.region eu" not in found  # 1.7 s from asia in place of 1.2


def test_shards_that_merge_too_slowly_are_named_with_as_many_as_are_needed() -> None:
    spec = spec_of({"us": 8})
    quick = given(seconds=0.5)
    first, *_ = limits(spec, quick)
    assert "the merges need 4 shards, and there are 1" in first.said
    assert named(options(spec, quick))["spec.syncer.shards from 1 to 4"].holds


@pytest.mark.parametrize("line", [(8.0, 0.0), (1.0, 0.18), (0.1, 0.0)])
def test_learners_that_wait_for_each_other_are_given_a_period_in_which_they_seldom_do(
    line: tuple[float, float],
) -> None:
    spec = spec_of({"us": 1, "eu": 1}, syncer=FAST, sync={"preset": "DiLoCo", "period": 20})
    lines = given({"eu": line})
    assert any("wait for the network in" in each.said for each in limits(spec, lines))
    (longer,) = (each for each in options(spec, lines) if "sync.period" in each.setting)
    assert longer.holds
    assert len(together(spec, lines)) == 1


@pytest.mark.parametrize(
    "sync", [{}, {"preset": "DiLoCo"}, {"preset": "StreamingDiLoCo", "wire": {"down": "int4"}}]
)
def test_no_advice_makes_a_manifest_that_is_refused(sync: dict[str, Any]) -> None:
    """Or makes it worse, whatever the line is."""
    spec = spec_of({"us": 1, "eu": 4}, sync=sync)
    for rate, trip in ((0.01, 0.0), (0.5, 3.0), (100.0, 0.0), (100.0, 50.0)):
        lines = replace(given({"eu": (rate, trip)}), step_seconds=0.1)
        before = limits(spec, lines)[0].used
        for each in options(spec, lines):
            assert each.used < before, each
            assert "shards" not in each.setting or int(each.setting.split()[-1]) <= 64
