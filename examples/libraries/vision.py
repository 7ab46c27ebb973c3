"""A small network with batch normalisation, as PyTorch's example for MNIST trains one.

python vision.py                                       # alone
atoll run examples/libraries/vision.py --learners 3 --steps 200
"""

import argparse

import torch
from digits import digits
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import atoll


class Net(nn.Module):
    """Images float32 [batch, 1, 16, 16] -> log-probabilities [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.norm2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 6 * 6, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions, one layer."""
        x = functional.relu(self.norm1(self.conv1(x)))
        x = functional.relu(self.norm2(self.conv2(x)))
        x = torch.flatten(functional.max_pool2d(x, 2), 1)
        return functional.log_softmax(self.fc(x), dim=1)


def train(
    model: Net,
    device: torch.device,
    train_loader: DataLoader[tuple[Tensor, ...]],
    optimizer: optim.Optimizer,
) -> None:
    """One epoch."""
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)  # noqa: PLW2901
        optimizer.zero_grad()
        output = model(data)
        loss = functional.nll_loss(output, target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if batch_idx % 25 == 0:
            print(f"[{batch_idx}/{len(train_loader)}] loss {loss.item():.4f}")


def test(model: Net, device: torch.device, test_loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """The mean loss of the test set, in nats per image."""
    model.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data.to(device))
            loss += functional.nll_loss(output, target.to(device), reduction="sum").item()
            correct += int((output.argmax(dim=1) == target.to(device)).sum())
            count += len(target)
    print(f"test loss {loss / count:.4f}, {correct} of {count} right")
    return loss / count


def main() -> None:
    """Train and test in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = TensorDataset(*digits(1600, seed=2 + atoll.job().index))
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(*digits(1000, seed=1)), batch_size=500)
    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    with atoll.Learner(model, optimizer) as learner:
        learner.follow(optimizer, tokens=args.batch_size)
        for _ in learner.epochs():
            train(model, device, train_loader, optimizer)
            test(model, device, test_loader)


if __name__ == "__main__":
    main()
