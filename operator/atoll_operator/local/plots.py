"""loss.png and goodput.png of a run folder, from its other files."""

from pathlib import Path
from typing import Any

from atoll_operator.local.summary import read_lines


def draw(out: Path, tokens: dict[str, int]) -> None:
    """Write both pictures; `tokens` is that part of the summary."""
    import matplotlib as mpl  # noqa: PLC0415 - only local mode has it, and it is slow to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4.5), constrained_layout=True)
    for path in sorted((out / "learners").glob("*.jsonl")):
        lines = [each for each in read_lines(path) if each.get("loss") is not None]
        axes.plot([e["tick"] for e in lines], smooth([e["loss"] for e in lines]), label=path.stem)
    evaluations = read_lines(out / "evaluations.jsonl")
    if evaluations:
        ticks, losses = [e["tick"] for e in evaluations], [e["loss"] for e in evaluations]
        axes.plot(ticks, losses, "k.-", label="held out, outer parameters")
    axes.set(xlabel="tick", ylabel="loss")
    if axes.lines:
        axes.legend()
    figure.savefig(out / "loss.png", dpi=120)
    plt.close(figure)
    figure, axes = plt.subplots(figsize=(6, 3), constrained_layout=True)
    names = ["merged", "overlap", "late", "lost", "pending"]
    axes.barh(names, [tokens[name] for name in names])
    axes.invert_yaxis()
    axes.set(xlabel="tokens")
    figure.savefig(out / "goodput.png", dpi=120)
    plt.close(figure)


def smooth(values: list[float], weight: float = 0.05) -> list[Any]:
    """An exponential moving average, which keeps noisy curves apart."""
    smoothed: list[Any] = []
    for value in values:
        smoothed.append(value if not smoothed else smoothed[-1] + weight * (value - smoothed[-1]))
    return smoothed
