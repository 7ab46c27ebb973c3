"""What a page shows to be typed is there: verbs, options, values of the chart."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from atoll_operator.cli.app import app
from unit.docs.tree import ROOT, files, name

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
WORD = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(
    r"(?:^|[\s(])(?:kubectl (?:--context \S+ )?)?atoll +([a-z]+)(?![\w/.-])((?:[^|>;#`\n\\]|\\\|)*)"
)
SET = re.compile(r"--set[ =]'?([A-Za-z.]+)=")
PAGES = files("README.md", "docs/*.md", "helm/*.md", "helm/*.txt", "helm/*rules.yaml")
VERBS: Any = typer.main.get_command(app)
CHART = ROOT / "helm/atoll"
VALUES = json.loads((CHART / "values.schema.json").read_text())


def code(page: Path) -> Iterator[str]:
    """Lines of commands, and what stands in the prose as code."""
    text = page.read_text()
    for language, block in BLOCK.findall(text):
        if language == "sh":
            yield from block.splitlines()
    yield from WORD.findall(BLOCK.sub("", text))


def commands(page: Path) -> list[tuple[str, str]]:
    """Verb and further words of each command `atoll` that a page shows."""
    return [found.groups() for line in code(page) for found in COMMAND.finditer(line)]  # type: ignore[misc]


def options(words: str) -> list[str]:
    """The options in the words of a command, without those of a script behind two dashes."""
    own = re.split(r"[\s\[]--(?:\s|$)", words)[0]
    plain = re.sub(r"[\[\]…]", " ", own).replace("\\|", " ")
    return [word.partition("=")[0] for word in shlex.split(plain) if word.startswith("-")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_every_command_that_a_page_shows_has_these_options(page: Path) -> None:
    for verb, words in commands(page):
        assert verb in VERBS.commands, f"atoll {verb}{words}"
        command = VERBS.commands[verb]
        if isinstance(command, TyperGroup):
            command = command.commands[words.split()[0]]
        if command.context_settings.get("ignore_unknown_options"):
            continue  # a script of its own reads them
        known = {each for option in command.params for each in option.opts}
        assert set(options(words)) <= known | {"--help"}, f"atoll {verb}{words}"


def has(schema: dict[str, Any], path: str) -> bool:
    """Whether a field is in a schema; below what may be anything, everything is."""
    for part in path.replace("[", ".[").split("."):
        if schema.get("x-kubernetes-preserve-unknown-fields") or schema == {}:
            return True
        if part.startswith("["):
            found = schema.get("items")
        else:
            schema = schema.get("items", schema)
            found = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
        if found is None:
            return False
        schema = found if isinstance(found, dict) else {}
    return True


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_value_that_a_page_sets_is_one_of_the_chart(page: Path) -> None:
    for path in SET.findall(page.read_text()):
        if not path.startswith("spec."):  # of `atoll run`
            assert has(VALUES, path), path
