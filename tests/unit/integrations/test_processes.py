"""Ranks that a trainer does not know of."""

import pytest
import torch

from atoll import SpecError
from atoll_integrations.processes import Ranks, check_all


def test_a_process_without_a_group_counts_its_own() -> None:
    loss = torch.tensor(2.0)
    assert Ranks().together(7, loss, loss.device) == (7, loss)
    assert Ranks().together(7, None, loss.device) == (7, None)


def test_a_trainer_that_divides_its_work_for_another_number_of_processes_is_refused() -> None:
    check_all("AtollCallback", 1, "")
    with pytest.raises(SpecError, match="knows 2 of 1 processes; give it one"):
        check_all("AtollCallback", 2, "give it one")
