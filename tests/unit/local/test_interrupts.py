"""An interrupt ends a run in order: it is never lost, and another one cuts nothing short."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll_operator.local import atoll_run
from unit.local.test_atoll_run import learner, training_of
from unit.local.test_chaos_passes import stop_at_once
from unit.local.test_local_status import job, reply, snapshot

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def no_interrupt_comes_out() -> Iterator[None]:
    """It would end pytest, and no test would have failed. Handlers are put back."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("an interrupt cuts the end short")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_second_interrupt_says_that_the_run_stops(capsys: pytest.CaptureFixture[str]) -> None:
    with no_interrupt_comes_out():
        with atoll_run.terminated_like_interrupted():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert not capsys.readouterr().err
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().err.splitlines() == [atoll_run.STOPPING] * 2


def test_the_end_of_the_terminal_ends_a_run_in_order_but_for_nohup() -> None:
    with no_interrupt_comes_out():
        with atoll_run.terminated_like_interrupted(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with atoll_run.terminated_like_interrupted():
            signal.raise_signal(signal.SIGHUP)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_comes_again() -> None:
    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with no_interrupt_comes_out(), atoll_run.terminated_like_interrupted() as again_if_lost:
        again_if_lost()
        Dropping()
        with pytest.raises(KeyboardInterrupt):
            again_if_lost()


def test_each_pass_looks_whether_the_run_is_interrupted(tmp_path: Path) -> None:
    training = training_of(tmp_path, learner("a-0"))
    looks = SimpleNamespace(poll=lambda *_, **__: snapshot([reply()]), job=job())
    training.poller = looks  # type: ignore[assignment]
    waits: list[object] = []
    training.supervisor.wait = waits.append  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        training.run(stop_at_once)
    assert not waits
