"""Offers far longer than their slot's last ones and than the others' are outliers, and no more."""

import math
from pathlib import Path

import numpy as np
import pytest

from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.model.effects import MergeOffers
from atoll_syncer.numbers.commit import PAST_MIN, NormHistory
from unit.syncer.values_side import Bench

SLOTS = ("a-0", "a-1", "b-0")


def judged(*rounds: dict[str, float], limit: float = 10.0) -> list[set[str]]:
    """The outliers of each of these rounds of one slice."""
    history = NormHistory(limit)
    return [set(history.outliers(0, norms)) for norms in rounds]


def alike(norm: float, slots: tuple[str, ...] = SLOTS) -> dict[str, float]:
    return dict.fromkeys(slots, norm)


HEALTHY = [alike(1.0 + n / 10) for n in range(PAST_MIN)]


def test_who_is_far_beyond_its_own_norms_and_the_others_is_an_outlier() -> None:
    wild = alike(1.0) | {"b-0": 30.0}
    assert judged(*HEALTHY, wild)[-1] == {"b-0"}
    assert judged(*HEALTHY, alike(1.0) | {"b-0": 9.0})[-1] == set()
    assert judged(*HEALTHY, wild, wild, wild, wild)[-1] == {"b-0"}, "far out is no usual norm"
    assert judged(*HEALTHY, wild, limit=0.0)[-1] == set()
    assert judged(*HEALTHY, {"b-0": 30.0})[-1] == {"b-0"}, "alone in its round"


@pytest.mark.parametrize(
    "norms",
    [
        pytest.param([*HEALTHY, alike(1000.0)], id="all are longer: a change of the data"),
        pytest.param(
            [alike(1.0) | {"b-0": 50.0}] * 9, id="one is always longer: it has more steps"
        ),
        pytest.param([{"a-0": 1.0}] * 4 + [{"a-0": 99.0}], id="one learner alone"),
        pytest.param([*HEALTHY, alike(1.0) | {"c-0": 99.0}], id="who is new has no past"),
        pytest.param([alike(0.01 * 1.5**n) for n in range(30)], id="a warm-up"),
    ],
)
def test_what_has_a_good_reason_is_no_outlier(norms: list[dict[str, float]]) -> None:
    assert judged(*norms) == [set()] * len(norms)


def test_each_slice_has_a_past_of_its_own_and_the_reason_names_the_norms() -> None:
    history = NormHistory(10.0)
    for norms in HEALTHY:
        history.outliers(0, norms)
    assert not history.outliers(1, alike(1.0) | {"a-0": 50.0})
    (reason,) = history.outliers(0, alike(1.0) | {"a-0": 55.0}).values()
    assert reason == "an outlier: its norm of 55 is 50 times its usual one and 55 times the others'"


@pytest.mark.parametrize("wire", [Wire.F32, Wire.BF16, Wire.INT4, Wire.INT2])
def test_a_version_without_an_outlier_is_the_one_that_the_others_make(
    wire: Wire, tmp_path: Path
) -> None:
    sync = Sync(fragments=2, wire_up=wire, wire_down=Wire.F32)
    benches = [Bench(tmp_path / name, sync) for name in ("wild", "without")]
    for bench in benches:
        bench.seed()
        for number in range(1, PAST_MIN + 1):
            bench.round(0, number)
    wild, without = benches
    captures = dict(zip(SLOTS, (9, 5, 7), strict=True))  # and weights
    offers = [wild.offer(0, slot, captures[slot]) for slot in SLOTS]
    key = next(key for key in wild.values._offers if key[0] == SLOTS[2])
    arrived = wild.values._offers[key]
    norms = tuple(1000.0 * each for each in arrived.norms)
    wild.values._offers[key] = type(arrived)(head=arrived.head, values=arrived.values, norms=norms)
    making = wild.values.begin_merge(MergeOffers(0, tuple(offers), 0.9), "run", 1)
    making.compute()
    assert set(making.found.left_out) == {SLOTS[2]}
    assert set(making.found.norms) == set(SLOTS)
    assert set(making.found.cosines) == set(SLOTS[:2])
    assert all(-1.0 <= each <= 1.0 for each in making.found.cosines.values())
    same = [without.offer(0, slot, captures[slot]) for slot in SLOTS[:2]]
    expected = without.values.begin_merge(MergeOffers(0, tuple(same), 0.9), "run", 1)
    expected.compute()
    one, other = (bench.values.slices[0].master for bench in benches)
    assert np.array_equal(one, other)


def test_the_cosine_of_one_offer_is_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2, wire_up=Wire.F32))
    bench.seed()
    offer = bench.offer(0, SLOTS[0], 1)
    making = bench.values.begin_merge(MergeOffers(0, (offer,), 0.9), "run", 1)
    making.compute()
    assert math.isclose(making.found.cosines[SLOTS[0]], 1.0, rel_tol=1e-6)
