"""Bugs in what is said of a training process that stands still (rule 40)."""

import pytest

from atoll_worker.rules.state import State

Patch = pytest.MonkeyPatch


def a_learner_that_waits_whatever_it_is_told(patch: Patch) -> None:
    """Rule 40: until Proceed, as if every wait were one for a Publish."""
    patch.setattr(State, "awaits_version", property(lambda state: state.step_waits))
