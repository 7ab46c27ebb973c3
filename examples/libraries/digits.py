"""Pictures of digits that need no download: glyphs of 5 x 7 points, moved, scaled and noisy."""

import torch
from torch import Tensor
from torch.nn import functional

SIZE = 16
GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def digits(count: int, seed: int, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Images float32 [count, 1, 16, 16], about 0 to 1, and labels int64 [count]."""
    generator = torch.Generator().manual_seed(seed)
    glyphs = torch.tensor([[[int(c) for c in row] for row in each.split()] for each in GLYPHS])
    large = functional.interpolate(glyphs[:, None].float(), size=(11, 8))
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randn(count, 1, SIZE, SIZE, generator=generator) * noise
    places = torch.randint(6, (count, 2), generator=generator).tolist()
    for image, label, (row, column) in zip(images, labels.tolist(), places, strict=True):
        image[0, row : row + 11, column : column + 8] += large[label, 0]
    return images, labels
