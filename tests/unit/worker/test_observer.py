import os
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from atoll_protos.errors import SpecError
from atoll_worker import observer as watching
from atoll_worker.errors import LearnerError
from atoll_worker.link.messages import Evaluated, Fail, Finished, Tick
from atoll_worker.observer import Observer
from unit.worker.fake_transport import FakeTransport, Gate, job_of, playing


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))


def observer_of(model: nn.Module) -> Observer:
    observer = Observer(model)
    observer._job = job_of(slot="")
    return observer


def value_of(model: nn.Module) -> float:
    (value,) = {each for part in model.parameters() for each in part.flatten().tolist()}
    return float(value)


def adopted(fake: FakeTransport) -> None:
    count = 0
    while count < len(fake.end.configure.layout.slices):
        count += len(fake.boundary().adopted)


def test_snapshots_are_the_first_values_then_at_multiples_and_the_final_one_always() -> None:
    reported = Gate()

    def script(fake: FakeTransport) -> None:
        assert fake.end.configure.observer
        assert fake.end.configure.slot == ""
        assert fake.end.memory.plan.capture_offsets == ()
        fake.offer_values(1.0)
        adopted(fake)
        start = fake.next()
        assert isinstance(start, Evaluated)
        assert (start.tick, start.loss) == (0, 1.0)
        fake.send(Tick(tick=9), Tick(tick=25))
        first = fake.next()
        assert isinstance(first, Evaluated)
        assert (first.tick, first.final, first.loss, first.tokens) == (25, False, 1.0, 64)
        assert first.seconds >= 0
        fake.offer_values(2.0, number=1)
        adopted(fake)
        fake.send(Tick(tick=29))
        fake.offer_values(3.0, number=2)
        adopted(fake)
        fake.send(Finished())
        last = fake.next()
        assert isinstance(last, Evaluated)
        assert (last.tick, last.final, last.loss) == (29, True, 3.0)
        reported.pass_()
        assert fake.until_leaving().reason == "done"

    seen = []
    with playing(script), observer_of(tiny()) as observer:
        for snapshot in observer.snapshots(every=10):
            seen.append((snapshot.tick, snapshot.final, value_of(snapshot.model)))
            observer.report(loss=value_of(snapshot.model), tokens=64)
        assert observer.tick == 29
        reported.open()
    assert seen == [(0, False, 1.0), (25, False, 1.0), (29, True, 3.0)]


def test_a_snapshot_waits_for_every_part_of_the_model() -> None:
    def script(fake: FakeTransport) -> None:
        fake.send(Tick(tick=50))
        fake.offer_values(1.0)
        adopted(fake)
        assert fake.until_leaving().reason == "done"

    with playing(script), observer_of(tiny()) as observer:
        snapshot = next(observer.snapshots(every=10))
        assert (snapshot.tick, value_of(snapshot.model)) == (50, 1.0)


def test_a_refused_observer_raises() -> None:
    def script(fake: FakeTransport) -> None:
        fake.send(Fail(exit_code=65, reason="another layout"))
        fake.until_leaving()

    observer = observer_of(tiny())
    with playing(script), pytest.raises(LearnerError, match="another layout"), observer:
        next(observer.snapshots())


def test_sigterm_ends_the_wait_for_a_snapshot() -> None:
    def script(fake: FakeTransport) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert fake.until_leaving().reason == "terminated"

    with playing(script), pytest.raises(SystemExit) as caught, observer_of(tiny()) as observer:
        next(observer.snapshots())
    assert caught.value.code == 0


def test_it_leaves_also_where_nobody_reads_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(fake: FakeTransport) -> None:
        assert fake.until_leaving().reason == "done"

    def broken(*_: object, **_fields: object) -> None:
        raise BrokenPipeError

    with playing(script), pytest.raises(BrokenPipeError), observer_of(tiny()):
        monkeypatch.setattr(watching, "log", SimpleNamespace(info=broken))


def test_a_call_out_of_order_is_an_error_that_names_the_remedy() -> None:
    def script(fake: FakeTransport) -> None:
        fake.until_leaving()

    observer = observer_of(tiny())
    with pytest.raises(RuntimeError, match="with Observer"):
        next(observer.snapshots())
    with playing(script), observer:
        with pytest.raises(SpecError, match="every: is 0"):
            next(observer.snapshots(every=0))
        with pytest.raises(RuntimeError, match="inside the loop"):
            observer.report(loss=1.0, tokens=1)
    torch.set_num_threads(1)


def test_a_model_that_an_observer_cannot_fill_is_refused_before_it_joins() -> None:
    with pytest.raises(SpecError, match=r"model: generator is no torch.nn.Module"):
        observer_of(tiny().parameters()).__enter__()  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"model\.weight: has no shape yet"):
        observer_of(nn.LazyLinear(2)).__enter__()
