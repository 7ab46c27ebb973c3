"""The public package: `from atoll import Learner` in any PyTorch training loop."""

from atoll_worker.errors import LearnerError
from atoll_worker.learner import Learner
from atoll_worker.observer import Observer

__all__ = ["Learner", "LearnerError", "Observer"]
