"""SIGTERM, where no Learner is needed to see what comes of it."""

import signal

from atoll_worker.training.termination import Termination


def test_a_second_sigterm_does_not_end_a_process_that_leaves() -> None:
    termination = Termination()
    termination.install()
    with termination.leaving():
        signal.raise_signal(signal.SIGTERM)
    assert not termination.requested
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
