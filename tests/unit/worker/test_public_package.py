"""What a user may import, and what importing it costs."""

import subprocess
import sys

import atoll

PUBLIC = {"Job", "Learner", "LearnerError", "Observer", "SpecError", "Step", "job"}
ASKED = {"cursor", "data_state", "finished", "is_main", "model", "optimizer", "own_steps"}
ASKED |= {"progress", "seed", "slot", "tick", "total_ticks"}
MEMBERS = ASKED | {"close", "epochs", "follow", "log", "on_adopt", "open", "schedule", "step"}
HEAVY = ("grpc", "grpc.aio", "kubernetes", "pydantic", "prometheus_client")


def test_the_public_names_are_exactly_these() -> None:
    assert set(atoll.__all__) == PUBLIC
    assert all(getattr(atoll, name).__doc__ for name in PUBLIC)


def test_a_learner_shows_its_user_these_members_and_no_others() -> None:
    learner = atoll.Learner.__new__(atoll.Learner)
    shown = {name for name in dir(learner) if not name.startswith("_")}
    assert shown | {"model", "optimizer"} == MEMBERS


def test_importing_it_brings_in_no_network_library() -> None:
    program = f"""
import sys
import torch
before = set(sys.modules)
from atoll import Learner, LearnerError, Observer
print(*sorted({{name for name in {HEAVY} if name in sys.modules and name not in before}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().split() == []
