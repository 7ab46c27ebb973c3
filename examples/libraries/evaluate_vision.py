"""The evaluator of vision.py (`spec.evaluator` with its own command): measures the shared model."""

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
