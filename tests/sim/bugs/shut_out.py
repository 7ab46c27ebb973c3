"""Bugs in who is shut out (rule 41)."""

import pytest

from atoll_syncer.rules import shut_out

Patch = pytest.MonkeyPatch


def a_grace_without_end(patch: Patch) -> None:
    """Rule 41: who has left the list stays."""
    patch.setattr(shut_out, "is_out", lambda state, slot, now: False)


def a_grace_of_nothing(patch: Patch) -> None:
    """Rule 41: an edit that comes to one shard first ends learners."""
    patch.setattr(shut_out, "GRACE_SECONDS", 0.0)
    patch.setattr("sim.simulate.grace_of", lambda scenario: 0.0)


def certificates_that_nobody_looks_at(patch: Patch) -> None:
    """Rule 41: neither expiry nor revocation ends a session."""
    patch.setattr(shut_out, "_of_certificate", lambda state, shown, now: None)
