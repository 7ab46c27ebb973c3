"""What another process of a learner has sent arrives as it was, made of known parts alone."""

import math
import random
from dataclasses import dataclass, fields

import pytest

from atoll_protos.job.layout import TensorSpec
from atoll_worker.link import messages
from atoll_worker.link.messages import Boundary, Finished, LoggedValues, Start
from atoll_worker.ranks.redistribution import Box, Held
from unit.worker.fixtures import BOUNDARY, CONFIGURE

SPEC = TensorSpec(name='a"\n\udcff', shape=(), dtype="float32", merge="rda")


@pytest.mark.parametrize(
    "value",
    [
        CONFIGURE,
        BOUNDARY,
        Start(incarnation=1 << 60, cursor=0, tick=-1, data_state=bytes(range(256))),
        Finished(again=((0, 1), (2, 3))),
        LoggedValues(values=(("loss", -0.0), ("", math.inf))),
        (Held(SPEC, Box((), ())), Held(SPEC, None)),
        {"name": {1, 2}, "other": {"lr": 1e-3}},
        (True, (), None, "", b""),
    ],
)
def test_values_arrive_as_they_were(value: object) -> None:
    assert repr(messages.decode(messages.encode(value))) == repr(value)  # which has types and signs


def test_floats_arrive_bit_for_bit() -> None:
    drawn = random.Random(3)
    values = tuple(drawn.uniform(-1, 1) * 2.0 ** drawn.randrange(-1060, 1020) for _ in range(1000))
    assert messages.decode(messages.encode(values)) == values
    assert math.isnan(messages.decode(messages.encode(math.nan)))


@dataclass
class Unknown:
    """Nothing has said that it may travel."""

    command: str = "rm"


def test_what_is_not_known_is_neither_sent_nor_made() -> None:
    with pytest.raises(TypeError, match="Unknown does not travel"):
        messages.encode((1, Unknown()))
    for name in ("Unknown", "eval", "os.system", "RunFile.from_json"):
        with pytest.raises(KeyError):
            messages.decode(b'{"":["%s","1"]}' % name.encode())
    with pytest.raises(ValueError, match="shorter"):
        messages.decode(b'{"":["Boundary",1]}')
    assert len(fields(Boundary)) > 1
