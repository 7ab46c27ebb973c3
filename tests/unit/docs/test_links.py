"""Links between the pages lead somewhere, and what they name is there."""

import re
from pathlib import Path

import pytest

from unit.docs.tree import ROOT, documents, files, name, prose

LINK = re.compile(r"(?:\[[^\]]*\]\(|<img src=\")([^)\s\"]+)[)\"]")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
PATH = re.compile(
    r"`((?:\.ci|docs|examples|helm|operator|protos|requirements|syncer|tests|worker)/[^`\s<>*{}…]+)`"
)
SHORT = re.compile(r"`((?:atoll_\w+|kube|plan|edges|rules|training)/[\w/]+\.py)`")
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md", "docs/protocol.md")


def anchors(page: Path) -> set[str]:
    """Return what a link into a page may name: its headings, as GitHub writes them, and ids."""
    text = page.read_text()
    headings = (re.sub(r"[^\w\- ]", "", found.lower()) for found in HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in headings} | set(ANCHOR.findall(text))


@pytest.mark.parametrize("page", documents(), ids=name)
def test_every_link_to_a_file_or_a_heading_leads_there(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_that_a_source_names_is_there() -> None:
    pages = {name(page) for page in documents()}
    missing = {
        f"{name(path)}: {page}"
        for path in files("*.py", "*.proto", "*.yaml", "*.txt", "*Dockerfile")
        for page in re.findall(r"[\w./-]*\w\.md\b", path.read_text())
        if not {page, f"docs/{page}", name(path.parent / page)} & pages
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    sources = [
        str(path)
        for folder in ("operator", "syncer", "worker")
        for path in (ROOT / folder).rglob("*.py")
    ]
    short = [
        path for path in SHORT.findall(text) if not any(s.endswith(f"/{path}") for s in sources)
    ]
    assert named + short == []
    assert page != "CONTRIBUTING.md" or len(PATH.findall(text)) > 10
