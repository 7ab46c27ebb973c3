"""The targets of the other files for much longer: FUZZ_SECONDS of CPU time each."""

import pytest

from unit.hostile import test_files, test_heard, test_sent, test_stored
from unit.hostile.mutated import FUZZ_SECONDS, check_long

TARGETS = {
    **test_files.TARGETS,
    **test_stored.TARGETS,
    **test_sent.TARGETS,
    **test_heard.TARGETS,
}


@pytest.mark.long
@pytest.mark.timeout(60 + 20 * FUZZ_SECONDS)
@pytest.mark.parametrize("target", TARGETS)
def test_whatever_comes_is_taken_or_refused(target: str) -> None:
    check_long(TARGETS[target])
