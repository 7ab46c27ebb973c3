"""A loop with accelerate, as its documentation shows one, with a schedule of transformers.

python accelerate_loop.py                              # alone
atoll run examples/libraries/accelerate_loop.py --learners 3 --steps 200
atoll run examples/libraries/accelerate_loop.py --steps 200 --processes-per-learner 2
"""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from digits import digits
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import atoll


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    # One order of the data for any number of processes.
    data_config = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=data_config)
    accelerator.gradient_accumulation_steps = max(1, 2 // accelerator.num_processes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    dataset = TensorDataset(*digits(1600, seed=2 + atoll.job().index))
    dataloader = DataLoader(dataset, batch_size=16, shuffle=True)
    scheduler = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=200)
    model, optimizer, dataloader, scheduler = accelerator.prepare(
        model, optimizer, dataloader, scheduler
    )
    with atoll.Learner(accelerator.unwrap_model(model), optimizer) as learner:
        learner.schedule(scheduler)
        learner.follow(optimizer, tokens=32, loss=lambda: accelerator.reduce(loss.detach(), "mean"))
        for _ in learner.epochs():
            for images, labels in dataloader:
                with accelerator.accumulate(model):
                    loss = functional.cross_entropy(model(images), labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()


if __name__ == "__main__":
    main()
