"""The page of integrations shows all that Atoll changes in a script, and it is little."""

import re

import pytest

from unit.docs.tree import ROOT

PAGE = (ROOT / "docs/integrations.md").read_text()
SCRIPTS = ROOT / "examples/libraries"
LINES_MAX = {"accelerate_loop": 6, "diffusion": 8, "muon": 6}  # others: 5
OURS = re.compile(r"\b(atoll\w*|AtollCallback|learner)\b")


def shown() -> dict[str, list[str]]:
    """For every script the lines of the block that follows its link."""
    found = {}
    for text, block in re.findall(r"(.*?)```diff\n(.*?)```", PAGE, re.DOTALL):
        *_, script = re.findall(r"examples/libraries/(\w+)\.py\)", text)
        found[script] = block.splitlines()
    return found


def without_atoll(script: str, changes: list[str]) -> str:
    """The script with the changes undone; indentation comes from what stood in a line's place."""
    lines = (SCRIPTS / f"{script}.py").read_text().splitlines()
    old: str | None = None
    for change in changes:
        sign, text = change[0], change[1:].strip()
        if sign == "-":
            old = text
            continue
        (at,) = (number for number, line in enumerate(lines) if line.strip() == text)
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        if old is None and text.startswith("with "):
            old = "if True:"  # its block stays where it is
        lines[at : at + 1] = [] if old is None else [indent + old]
        old = None
    return "\n".join(lines) + "\n"


def test_every_script_is_shown() -> None:
    others = {"digits", "evaluate_vision"}
    others |= {"ddp_loop", "fsdp_loop", "titan_cpu", "titan_llama", "titan_trainer"}  # in words
    assert shown().keys() == {path.stem for path in SCRIPTS.glob("*.py")} - others


@pytest.mark.parametrize(("script", "changes"), shown().items())
def test_a_script_differs_from_the_plain_one_in_the_lines_that_the_page_shows(
    script: str, changes: list[str]
) -> None:
    added = [line for line in changes if line.startswith("+")]
    assert len(added) <= LINES_MAX.get(script, 5)
    assert f"| {len(added)} |" in next(
        line for line in PAGE.splitlines() if line.startswith("|") and f"{script}.py" in line
    )
    plain = without_atoll(script, changes)
    compile(plain, script, "exec")
    _, _, code = plain.split('"""', 2)  # the docstring says how it is started as a job
    assert not OURS.search(code), OURS.search(code)
