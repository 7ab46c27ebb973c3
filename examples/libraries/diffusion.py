"""A diffusion model of digits, in a loop like those of diffusers' own training scripts.

python diffusion.py                                    # alone
atoll run examples/libraries/diffusion.py --learners 3 --steps 200
atoll run examples/libraries/diffusion.py --steps 200 --processes-per-learner 2
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from digits import digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import atoll


def main() -> None:
    """Train, and save the averaged model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", default="diffusion_output")
    arguments = parser.parse_args()
    set_seed(0)
    config = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=config)
    accelerator.gradient_accumulation_steps = max(1, 2 // accelerator.num_processes)
    model = UNet2DModel(
        sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(8, 16), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    ema = EMAModel(model.parameters(), decay=0.99)
    noises = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = TensorDataset(digits(320, seed=2 + atoll.job().index)[0] * 2 - 1)
    loader = DataLoader(images, batch_size=8, shuffle=True)
    rates = get_scheduler("cosine", optimizer, num_warmup_steps=10, num_training_steps=200)
    model, optimizer, loader, rates = accelerator.prepare(model, optimizer, loader, rates)
    with atoll.Learner(accelerator.unwrap_model(model), optimizer) as learner:
        learner.schedule(rates)
        learner.follow(optimizer, tokens=16, loss=lambda: accelerator.reduce(loss.detach(), "mean"))
        set_seed(1_000_003 * atoll.job().index + learner.cursor, device_specific=True)
        for _ in learner.epochs():
            for (clean,) in loader:
                with accelerator.accumulate(model):
                    noise = torch.randn_like(clean)
                    times = torch.randint(1000, (len(clean),), device=clean.device)
                    noisy = noises.add_noise(clean, noise, times)
                    loss = functional.mse_loss(model(noisy, times).sample, noise)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    rates.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    ema.step(model.parameters())
    if learner.is_main:
        ema.copy_to(model.parameters())
        unet = accelerator.unwrap_model(model)
        DDPMPipeline(unet=unet, scheduler=noises).save_pretrained(arguments.output_dir)


if __name__ == "__main__":
    main()
