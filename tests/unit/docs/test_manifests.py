"""What the documents show of a manifest can be copied: every field is there, and its value fits."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_operator.api.job import parsing
from atoll_operator.api.job.spec import KIND
from unit.docs.tree import files, name

BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
REST: dict[str, Any] = {"steps": 100, "regions": [{"name": "us-east", "learners": 2}]}


def shown(page: Path) -> list[dict[str, Any]]:
    """The specs of jobs in a page, which may show some fields only."""
    found = []
    for text in BLOCK.findall(page.read_text()):
        for document in yaml.safe_load_all(text):
            if not isinstance(document, dict) or "spec" not in document:
                continue
            if document.get("kind", KIND) == KIND:
                found.append(document["spec"])
    return found


PAGES = [page for page in files("docs/*.md", "README.md") if shown(page)]


def test_pages_show_manifests() -> None:
    assert "docs/kubernetes.md" in {name(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_shows_of_a_manifest_is_accepted(page: Path) -> None:
    for spec in shown(page):
        whole = {**REST, **spec}
        if "tokens" in spec:
            del whole["steps"]
        parsing.from_object({"metadata": {"name": "shown"}, "spec": whole})
