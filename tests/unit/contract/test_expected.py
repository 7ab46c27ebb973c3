"""The list of a job's learners."""

import pytest

from atoll_protos.errors import SpecError
from atoll_protos.expected import NOBODY, Expected
from atoll_protos.run import Region

TWO = Expected(regions=(Region(name="us", learners=1), Region(name="eu", learners=1)))


def test_it_survives_its_json_and_names_every_slot() -> None:
    assert Expected.from_json(TWO.to_json()) == TWO
    assert TWO.slots == {"us-0", "eu-0"}
    assert NOBODY.slots == frozenset()
    assert Expected.from_json("{}") == NOBODY


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[", "slots file"),
        ("7", "slots file"),
        ('{"start_seconds": -1}', "start_seconds"),
        ('{"start_seconds": "soon"}', "start_seconds"),
        ('{"regions": [{"name": "us"}]}', "regions[0].learners"),
        ('{"learners": 3}', "learners"),
    ],
)
def test_a_bad_list_is_named_with_its_field(text: str, field: str) -> None:
    with pytest.raises(SpecError) as raised:
        Expected.from_json(text)
    assert raised.value.field == field
    assert raised.value.remedy
