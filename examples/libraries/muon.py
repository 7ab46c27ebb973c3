"""nanogpt.py's model with two optimizers: Muon for the matrices of its blocks, AdamW for the rest.

python muon.py                                         # alone
atoll run examples/libraries/muon.py --learners 3 --steps 200
"""

import torch
from nanogpt import GPT, estimate_loss, get_batch, read_data
from torch.optim import AdamW, Muon

import atoll


def main() -> None:
    """Train."""
    train_data, val_data = read_data()
    torch.manual_seed(1337)
    model = GPT()
    matrices = [each for each in model.h.parameters() if each.ndim == 2]
    taken = set(map(id, matrices))
    others = [each for each in model.parameters() if id(each) not in taken]
    muon, adamw = Muon(matrices, lr=0.02, weight_decay=0.1), AdamW(others, lr=3e-3)
    with atoll.Learner(model, [muon, adamw]) as learner:
        learner.schedule(lambda progress: 1 - 0.9 * progress)
        learner.follow(adamw, tokens=256, loss=lambda: loss)
        while not learner.finished:
            torch.manual_seed(1_000_003 * atoll.job().index + learner.cursor)
            _, loss = model(*get_batch(train_data))
            loss.backward()
            for optimizer in (muon, adamw):  # together one step of the model
                optimizer.step()  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
    print(f"val loss {estimate_loss(model, val_data):.4f}")


if __name__ == "__main__":
    main()
