"""The list of a job's learners."""

import dataclasses
import json

import pytest

from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import NOBODY, Expected, Limit, ListedMachine, Region

TWO = Expected(regions=(Region(name="us", learners=1), Region(name="eu", learners=1)))


def test_it_survives_its_json_and_names_every_slot() -> None:
    assert Expected.from_json(TWO.to_json()) == TWO
    assert TWO.slots == {"us-0", "eu-0"}
    assert NOBODY.slots == frozenset()
    assert Expected.from_json("{}") == NOBODY


def test_a_learner_that_cannot_come_is_not_among_the_slots() -> None:
    one = dataclasses.replace(TWO, absent=("eu-0",))
    assert one.slots == {"us-0"}
    assert Expected.from_json(one.to_json()) == one


def test_a_checkpoint_that_is_asked_for_is_in_it() -> None:
    one = dataclasses.replace(TWO, checkpoint=51)
    assert Expected.from_json(one.to_json()) == one


def test_a_machine_has_its_own_slots() -> None:
    machines = ListedMachine(name="ws-3", slots=("us-0", "eu-0")), ListedMachine(name="ws-4")
    one = dataclasses.replace(TWO, machines=machines)
    assert Expected.from_json(one.to_json()) == one
    assert one.given == {"ws-3": {"us-0", "eu-0"}, "ws-4": frozenset()}
    assert TWO.given == {}


def test_where_all_can_come_an_earlier_version_can_read_the_file() -> None:
    assert set(json.loads(TWO.to_json())) == {"regions", "start_seconds"}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[", "slots file"),
        ("7", "slots file"),
        ('{"start_seconds": -1}', "start_seconds"),
        ('{"start_seconds": "soon"}', "start_seconds"),
        ('{"regions": [{"name": "us"}]}', "regions[0].learners"),
        ('{"learners": 3}', "learners"),
        ('{"machines": [{"slots": ["us-0"]}]}', "machines[0].name"),
        ('{"machines": {"ws-3": ["us-0"]}}', "machines"),
        ('{"machines": [{"name": "ws-3"}, {"name": "ws-3"}]}', "machines[1].name"),
    ],
)
def test_a_bad_list_is_named_with_its_field(text: str, field: str) -> None:
    with pytest.raises(SpecError) as raised:
        Expected.from_json(text)
    assert raised.value.field == field
    assert raised.value.remedy


def test_a_limit_is_of_its_region_alone() -> None:
    limited = dataclasses.replace(TWO, limits=(Limit(region="eu", generation=3),))
    assert limited.limit("eu").generation == 3
    assert limited.limit("us") == Limit(region="us")
    assert Expected.from_json(limited.to_json()) == limited
