import math
import os

import pytest

from atoll_worker.link.messages import Evaluated, Finished, Tick
from bytegpt import observe
from unit.worker.fake_transport import FakeTransport, playing

SMALL = ["--layers", "2", "--heads", "2", "--width", "16", "--context", "8"]


def test_the_evaluator_reports_the_outer_loss(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    niceness: list[int] = []
    monkeypatch.setattr(os, "nice", niceness.append)
    found: list[Evaluated] = []

    def script(fake: FakeTransport) -> None:
        fake.offer_values(0.0)
        found.append(next_evaluation(fake))
        fake.send(Tick(tick=7))
        found.append(next_evaluation(fake))
        fake.send(Finished())
        fake.until_leaving()

    with playing(script):
        observe.main([*SMALL, "--data", data, "--every", "5", "--heldout-bytes", "800"])
    assert niceness == [observe.NICE]
    assert [each.tick for each in found] == [0, 7]
    assert [each.tokens for each in found] == [800, 800]
    assert found[0].loss == pytest.approx(math.log(256))


def next_evaluation(fake: FakeTransport) -> Evaluated:
    while not isinstance(message := fake.next(), Evaluated):
        pass
    return message
