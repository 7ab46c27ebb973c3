"""bench.restart ends what it has started."""

import signal

import pytest

from bench.restart import running


@pytest.mark.parametrize("heard", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_process_ends_with_its_block_also_in_a_shells_background_job(
    heard: signal.Handlers,
) -> None:
    """Such a job ignores SIGINT, and so do the processes that it starts."""
    before = signal.signal(signal.SIGINT, heard)
    try:
        with running(["sleep", "20"]) as process:
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == -signal.SIGTERM
