"""The chart's values: each is explained once, and what is wrong with one is said by its name."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from chart import readme
from chart.rendering import CHART, run

REMEDY = "run python tests/chart/readme.py"


def test_the_readmes_table_is_that_of_the_values() -> None:
    text = readme.README.read_text()
    assert text == readme.renewed(text, readme.VALUES.read_text()), REMEDY
    assert "| `regions` |" in text


def test_the_schema_says_what_the_values_say() -> None:
    text = readme.SCHEMA.read_text()
    assert text == readme.described(text, readme.VALUES.read_text()), REMEDY


def test_a_value_without_a_comment_is_found() -> None:
    with pytest.raises(AssertionError, match=r"one\.two has no comment"):
        list(readme.values("one:\n  two: 3\n"))


def test_the_readme_and_the_templates_use_the_same_values() -> None:
    """A value that no template reads does nothing."""
    text = "".join(each.read_text() for each in (CHART / "templates").iterdir())
    for each in readme.values(readme.VALUES.read_text()):
        assert re.search(rf"\b{each.path[-1]}\b", text), ".".join(each.path)


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of the schema that names its keys."""
    if "properties" in schema:
        yield path, schema
    for key, part in schema.get("properties", {}).items():
        yield from objects(part, f"{path}.{key}")
    if isinstance(schema.get("items"), dict):
        yield from objects(schema["items"], f"{path}[]")


def test_no_object_of_the_schema_takes_a_key_that_it_does_not_know() -> None:
    found = dict(objects(json.loads(readme.SCHEMA.read_text())))
    assert "" in found
    for path, each in found.items():
        assert each["additionalProperties"] is False, path


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ("regions={us_east}", "regions"),
        ("regoins={us-east}", "regoins"),
        ("images.pullPolicy=Sometimes", "pullPolicy"),
        ("images.worker=", "worker"),
        ("images.workre=x", "workre"),
        ("namespaces={a_b}", "namespaces"),
        ("replicas=two", "replicas"),
        ("networkPolicy.enable=true", "enable"),
        ("networkPolicy.jobs.learnerEgres[0].to=x", "learnerEgres"),
        ("networkPolicy.jobs.shardEgress[0].too=x", "too"),
        ("networkPolicy.jobs.shardsFrom[0].ipblock=x", "ipblock"),
        ("metrics.podMonitor.interval=30", "interval"),
        ("metrics.dashbord.enabled=true", "dashbord"),
        ("resources.limit.memory=1Gi", "limit"),
        ("tolerations[0].efect=NoSchedule", "efect"),
        ("extraEnv[0].value=x", "name"),
        ("affinity.nodeAfinity=x", "nodeAfinity"),
        ("rbac.aggregate=yes", "aggregate"),
    ],
)
def test_bad_values_are_refused_by_name(helm: str, values: str, named: str) -> None:
    done = run(helm, "template", "atoll", str(CHART), "--set", values)
    assert done.returncode != 0
    assert named in done.stderr
