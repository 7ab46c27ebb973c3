"""What a benchmark has measured, as a file from which docs/numbers.md is made.

In tests/: python -m bench.tls --json bench/results/tls.json; then python -m bench.numbers

The name of a file is that of a section of the page. What no program writes is filled in by hand,
with its origin in `about`.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One value, or several that are read together: a row of a table, least and most."""

    what: str
    values: Sequence[float]
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one command. `command` is empty where there is none any more: `about` says why."""

    command: str
    date: str
    machine: str
    load: str
    commit: str
    about: str
    figures: Sequence[Figure]


def option(parser: argparse.ArgumentParser) -> None:
    """Add `--json FILE`, for `publish`."""
    parser.add_argument("--json", type=Path, help="write the figures there, for docs/numbers.md")
    parser.set_defaults(load=os.getloadavg()[0])


def publish(
    given: argparse.Namespace, figures: Sequence[Figure], *, about: str = "", device: str = ""
) -> None:
    """Print the figures of this program, and write the file that its command line names, if any."""
    for figure in figures:
        cells = ", ".join(f"{value:.4g}" for value in figure.values)
        sys.stdout.write(f"{figure.what}: {cells} {figure.unit}\n")
    if given.json is None:
        return
    loads = sorted((given.load, os.getloadavg()[0]))
    result = Result(
        command=_command(),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=", ".join(filter(None, (device, _machine()))),
        load=" to ".join(dict.fromkeys(f"{each:.0f}" for each in loads)),
        commit=_commit(),
        about=about,
        figures=figures,
    )
    given.json.write_text(text(result))


def text(result: Result) -> str:
    """A result as its file has it, a figure on each line."""
    head = {name: value for name, value in asdict(result).items() if name != "figures"}
    lines = [f' "{name}": {json.dumps(value)}' for name, value in head.items()]
    rows = ",\n".join(f"  {json.dumps(_row(each))}" for each in result.figures)
    return "{\n" + ",\n".join(lines) + f',\n "figures": [\n{rows}\n ]\n}}\n'


def _row(figure: Figure) -> dict[str, object]:
    return asdict(figure) | {"values": [float(f"{x:.6g}") for x in figure.values]}


def read(folder: Path = FOLDER) -> dict[str, Result]:
    """Every result, by the name of its file."""
    found = {}
    for path in sorted(folder.glob("*.json"), key=lambda each: each.stem):
        parsed = json.loads(path.read_text())
        figures = [Figure(**each) for each in parsed.pop("figures")]
        found[path.stem] = Result(**parsed, figures=figures)
    return found


def _command() -> str:
    """As it was typed, without `--json` and the paths of this machine."""
    words = [re.sub(r"^/.*", "FOLDER", word) for word in sys.argv[1:]]
    if "--json" in words:
        at = words.index("--json")
        del words[at : at + 2]
    words = [word if re.fullmatch(r"[\w.,=/-]+", word) else f'"{word}"' for word in words]
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "run it with python -m"
    return " ".join(["python -m", spec.name.removesuffix(".__main__"), *words])


def _machine() -> str:
    """Cores that this process may use, their model, and the memory."""
    info = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    model = models[0] if models else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({model}), {gigabytes:.0f} GiB"


def _commit() -> str:
    words = ["git", "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.stdout.strip()
