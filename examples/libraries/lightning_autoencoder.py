"""Lightning's own first example, an autoencoder of digits; the digits are drawn here.

python lightning_autoencoder.py                        # alone
atoll run examples/libraries/lightning_autoencoder.py --learners 3 --steps 200
atoll run examples/libraries/lightning_autoencoder.py --steps 200 --processes-per-learner 2
"""

import os

import lightning as L
import torch
from digits import digits
from torch import Tensor, nn, optim, utils
from torch.nn import functional

from atoll_integrations.lightning import AtollCallback


class LitAutoEncoder(L.LightningModule):  # type: ignore[misc]
    """Images of 16 x 16 through three numbers and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16 * 16, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 16 * 16))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The mean squared error of one batch."""
        x, _ = batch
        x = x.view(x.size(0), -1)
        loss = functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> tuple[list[optim.Optimizer], list[dict[str, object]]]:
        """Adam with one cycle of the rate."""
        optimizer = optim.Adam(self.parameters(), lr=1e-3)
        total_steps = self.trainer.estimated_stepping_batches
        scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=total_steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    dataset = utils.data.TensorDataset(*digits(4000, seed=0))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    train_loader = utils.data.DataLoader(dataset, batch_size=32 // ranks, shuffle=True)
    autoencoder = LitAutoEncoder()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=ranks,
        callbacks=[AtollCallback()],
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model=autoencoder, train_dataloaders=train_loader)


if __name__ == "__main__":
    main()
