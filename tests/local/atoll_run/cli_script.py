"""A small training script as anyone has it: arguments of its own, and one thing that it prints."""

import argparse
import os
import time

import torch

from atoll import Learner, job

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--pause", type=float, default=0.0, help="seconds of a step")
width, pause = parser.parse_args().width, parser.parse_args().pause
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(job().index)  # each learner has data of its own
print("width", width, "GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)  # noqa: T201
with Learner(model, optimizer) as learner:
    while not learner.finished:
        time.sleep(pause)
        inputs = torch.randn(8, 4)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(tokens=8, loss=loss)
