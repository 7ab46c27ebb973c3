"""The training loops that people copy first, as they stand on the pages."""

import inspect
import re
import textwrap
from pathlib import Path

import atoll

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "docs/training-scripts.md", "docs/learners.md", "Learner")
BLOCK = re.compile(r"^```python\n(import atoll\n.*?)^```", re.DOTALL | re.MULTILINE)
IMPORTS = "import atoll\nimport torch\n"


def block_of(page: str) -> str:
    """Of a page its first block that imports Atoll; of `Learner` the one in its docstring."""
    if page == "Learner":
        found = inspect.getdoc(atoll.Learner) or ""
        (lines,) = re.findall(r"(?:^    .*\n)+", found, re.MULTILINE)[:1]
        return IMPORTS + textwrap.dedent(lines)
    (block, *_) = BLOCK.findall((ROOT / page).read_text())
    return str(block)
