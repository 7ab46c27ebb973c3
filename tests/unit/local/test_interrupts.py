"""The end of a run is not cut short by whoever interrupts it again."""

import signal

import pytest

from atoll_operator.local import atoll_run


def test_a_second_interrupt_says_that_the_run_stops(capsys: pytest.CaptureFixture[str]) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with atoll_run.terminated_like_interrupted():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert not capsys.readouterr().err
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:  # it would end pytest, and no test would have failed
        pytest.fail("an interrupt cuts the end short")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err.splitlines() == [atoll_run.STOPPING] * 2
