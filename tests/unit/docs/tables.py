"""Tables of the documents that are made from the code; run this file to renew them.

A page has a table between `<!-- made: NAME -->` and `<!-- end -->`. A test compares them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics import MetricWrapperBase

from atoll_operator.api.docs import conditions_table
from atoll_operator.kube.metrics import Metrics as OperatorMetrics
from atoll_protos.environment import VARIABLES, Role
from atoll_protos.exits import EXITS
from atoll_syncer.metrics import Metrics as ShardMetrics

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "docs/conditions.md", ROOT / "docs/operating.md")
PLACE = re.compile(r"(<!-- made: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Rows = Iterator[Sequence[str]]


def table(columns: Sequence[str], rows: Rows) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def exit_codes() -> str:
    """Return what each exit code means."""
    rows = (
        (str(each.code.value), f"`{each.code.name}`", each.meaning, each.reason, each.remedy)
        for each in EXITS.values()
    )
    return table(("code", "name", "meaning", "reason of `Failed`", "remedy"), rows)


def variables(*roles: Role) -> str:
    """Return the environment variables of processes with these roles."""
    rows = (
        (
            f"`{each.name}`",
            ", ".join(each.roles),
            each.meaning,
            "required" if each.default is None else each.default and f"`{each.default}`",
            each.set_by,
        )
        for each in VARIABLES
        if {*roles} & {*each.roles}
    )
    return table(("variable", "read by", "meaning", "default", "set by"), rows)


def metrics() -> str:
    """Return every metric as it is scraped."""
    shard, operator = ShardMetrics(CollectorRegistry()), OperatorMetrics()
    return table(("metric", "type", "labels", "meaning"), chain(of(shard), of(operator)))


def of(program: object) -> Rows:
    """Yield the metrics of one program."""
    for metric in vars(program).values():
        if isinstance(metric, MetricWrapperBase):
            total = "_total" if isinstance(metric, Counter) else ""
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            yield f"`{metric._name}{total}`", str(metric._type), labels, metric._documentation


TABLES: dict[str, Callable[[], str]] = {
    "conditions": conditions_table,
    "exit-codes": exit_codes,
    "metrics": metrics,
    "variables-of-a-job": lambda: variables(Role.LEARNER, Role.EVALUATOR, Role.SHARD),
    "variables-of-the-operator": lambda: variables(Role.OPERATOR),
}


def renewed(text: str) -> str:
    """Return a page with its tables as the code has them now."""
    return PLACE.sub(lambda place: place[1] + TABLES[place[2]]() + place[4], text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text()))
