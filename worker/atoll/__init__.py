"""The public package: `from atoll import Learner` in any PyTorch training loop."""
