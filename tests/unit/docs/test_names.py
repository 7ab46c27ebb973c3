"""What a page tells a person to type or to look at is there: verbs, options, fields, values."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.core import TyperGroup

from atoll_operator.api.status.reasons import REASONS
from atoll_operator.cli.app import app
from unit.docs.tree import ROOT, files, name

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
WORD = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(
    r"(?:^|[\s(])(?:kubectl (?:--context \S+ )?)?atoll +([a-z]+)(?![\w/.-])((?:[^|>;#`\n\\]|\\\|)*)"
)
FIELD = re.compile(r"^(?:\.?(spec|status)\.)?([a-z]\w*(?:\[[\w*]*\])?(?:\.\w+(?:\[[\w*]*\])?)*)$")
SET = re.compile(r"--set[ =]'?([A-Za-z.]+)=")
PAGES = files("README.md", "docs/*.md", "helm/*.md", "helm/*.txt", "helm/*rules.yaml")
OF_KUBERNETES = files(
    *(f"docs/{page}.md" for page in ("kubernetes", "clusters", "operating", "security", "sizing"))
)
VERBS: Any = typer.main.get_command(app)
CHART = ROOT / "helm/atoll"
CRD = yaml.safe_load((ROOT / "crds/decoupledtrainingjobs.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
VALUES = json.loads((CHART / "values.schema.json").read_text())
WRONG = "When something is wrong"
ELSEWHERE = {"kopf.dev", "kueue.x"}  # words with a dot that are no fields


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


def test_commands_are_found() -> None:
    found = {verb for page in PAGES for verb, _ in commands(page)}
    assert found >= {"run", "status", "top", "logs", "plot", "export", "credentials", "validate"}
    assert options(" train.py --learners 3 [--gpus-per-learner N] -n A -- --lr 3") == [
        "--learners", "--gpus-per-learner", "-n",
    ]  # fmt: skip


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


def fields(page: Path) -> Iterator[tuple[str, str]]:
    """What a page names as a field: of what, where it says so, and the path."""
    begins = {*SCHEMA["spec"]["properties"], *SCHEMA["status"]["properties"], *VALUES["properties"]}
    for word in WORD.findall(BLOCK.sub("", page.read_text())):
        for part in re.split(r"[:= {]", word)[:1]:
            found = FIELD.match(part)
            if not found or part in ELSEWHERE:
                continue
            of, path = found.groups()
            if of or ("." in path and re.split(r"[.\[]", path)[0] in begins):
                yield of or "", path


@pytest.mark.parametrize("page", OF_KUBERNETES, ids=name)
def test_every_field_that_a_page_names_is_in_the_crd_or_in_the_charts_values(page: Path) -> None:
    found = list(fields(page))
    assert found
    for of, path in found:
        schemas = [SCHEMA[of]] if of else [SCHEMA["spec"], SCHEMA["status"], VALUES]
        assert any(has(each, path) for each in schemas), f"{of}.{path}"


def section(heading: str) -> str:
    """What docs/kubernetes.md says under a heading."""
    _, found, rest = (ROOT / "docs/kubernetes.md").read_text().partition(f"\n## {heading}\n")
    assert found
    return rest.partition("\n## ")[0]


def test_every_state_of_a_job_is_named_and_each_that_asks_for_something_has_a_row() -> None:
    rows = [row for row in REASONS if row.type == "Ready"]
    named = section("Waiting for a job")
    assert not [row.reason for row in rows if not re.search(rf"\b{row.reason}\b", named)]
    asked = {row.reason for row in rows if row.remedy}
    shown = set(re.findall(r"`(\w+)`", "".join(re.findall(r"\n\|([^|]*)\|", section(WRONG)))))
    assert shown <= {row.reason for row in rows}
    assert asked - shown == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_value_that_a_page_sets_is_one_of_the_chart(page: Path) -> None:
    for path in SET.findall(page.read_text()):
        if not path.startswith("spec."):  # of `atoll run`
            assert has(VALUES, path), path
