"""Bugs in sessions of several lanes (rule 33)."""

import pytest

from atoll_protos.frames import Whole
from atoll_protos.gathering import Gathering, Part

Patch = pytest.MonkeyPatch


def transfers_that_lack_a_part(patch: Patch) -> None:
    """Rule 33: one that has begun on every lane but one counts as whole."""
    verified = Gathering._verified

    def hasty(self: Gathering, lane: int, part: Part) -> Whole | None:
        if part.whole is not None and len(part.whole.missing) == len(part.whole.spans) > 1:
            part.whole.missing = {lane}
        return verified(self, lane, part)

    patch.setattr(Gathering, "_verified", hasty)
