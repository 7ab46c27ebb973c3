"""The evaluator of vision.py: measures the shared model while the job trains.

Name it in the manifest as `spec.evaluator` with a command of its own. The learners need not pause
for it, and it may be killed at any time.
"""

import torch
from digits import digits
from torch.utils.data import DataLoader, TensorDataset
from vision import Net, test

from atoll import Observer


def main() -> None:
    """Measure every snapshot on the images that vision.py holds out."""
    loader = DataLoader(TensorDataset(*digits(1000, seed=1)), batch_size=500)
    with Observer(Net()) as observer:
        for snapshot in observer.snapshots():
            loss = test(snapshot.model, torch.device("cpu"), loader)  # type: ignore[arg-type]
            observer.report(loss=loss, tokens=1000)


if __name__ == "__main__":
    main()
