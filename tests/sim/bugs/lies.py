"""Bugs in what a shard looks at before it believes a learner (rule 38)."""

import pytest

from atoll_syncer.rules import validation

Patch = pytest.MonkeyPatch


def reports_that_are_not_looked_at(patch: Patch) -> None:
    """Rule 38: their numbers count."""
    patch.setattr(validation, "of_message", lambda state, sender, message: "")


def joins_that_are_not_looked_at(patch: Patch) -> None:
    """Rule 38: their epochs and incarnations are taken."""
    patch.setattr(validation, "of_join", lambda state, join: "")
