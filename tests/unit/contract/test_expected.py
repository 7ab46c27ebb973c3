"""The list of a job's learners."""

import dataclasses

import pytest

from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import NOBODY, Expected, Limit, ListedMachine, Region

TWO = Expected(regions=(Region(name="us", learners=1), Region(name="eu", learners=1)))


def test_it_survives_its_json_and_names_every_slot() -> None:
    assert Expected.from_json(TWO.to_json()) == TWO
    assert TWO.slots == {"us-0", "eu-0"}
    assert NOBODY.slots == frozenset()
    assert Expected.from_json("{}") == NOBODY


def test_each_part_of_the_list_survives_its_json() -> None:
    machines = ListedMachine(name="ws-3", slots=("us-0", "eu-0")), ListedMachine(name="ws-4")
    one = dataclasses.replace(TWO, absent=("eu-0",), checkpoint=51, machines=machines)
    assert Expected.from_json(one.to_json()) == one
    assert one.slots == {"us-0"}
    assert one.given == {"ws-3": {"us-0", "eu-0"}, "ws-4": frozenset()}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "slots file: cannot be read"),
        ("7", "slots file: cannot be read"),
        ('{"start_seconds": "soon"}', "start_seconds: 'soon' is no int"),
        ('{"regions": [{"name": "us"}]}', "regions: "),
        ('{"learners": 3}', "learners: is unknown"),
        ('{"machines": {"ws-3": ["us-0"]}}', "machines: "),
    ],
)
def test_a_bad_list_is_named_with_its_field(text: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        Expected.from_json(text)


def test_a_limit_is_of_its_region_alone() -> None:
    limited = dataclasses.replace(TWO, limits=(Limit(region="eu", generation=3),))
    assert limited.limit("eu").generation == 3
    assert limited.limit("us") == Limit(region="us")
    assert Expected.from_json(limited.to_json()) == limited
