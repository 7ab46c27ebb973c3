"""Each part of a shard's State is written by one module of rules (see model/state)."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_syncer import rules
from atoll_syncer.model import state
from atoll_syncer.model.history import History
from atoll_syncer.model.roster import JobClock, Round, Session, Slot
from atoll_syncer.model.state import AskedHolder, Failures, Recovery, ShardState

WRITERS: dict[type, str] = {
    History: "shard",
    state.Run: "runs",
    state.ShardTerm: "runs",
    state.OpenSessions: "sessions",
    Slot: "sessions",
    state.ShutOut: "shut_out",
    state.Seed: "seeding",
    JobClock: "calls",
    state.Rounds: "rounds",
    Round: "rounds",
    state.DataStates: "publishing",
    state.UnreadSlices: "publishing",
    Recovery: "recovery",
    AskedHolder: "recovery",
    Failures: "recovery",
    state.Ending: "ending",
}
PARTS = {  # the State's own fields; to write one is to replace the part
    "history": History,
    "run": state.Run,
    "term": state.ShardTerm,
    "sessions": state.OpenSessions,
    "shut_out": state.ShutOut,
    "seed": state.Seed,
    "clock": JobClock,
    "rounds": state.Rounds,
    "data_states": state.DataStates,
    "reading": state.UnreadSlices,
    "recovery": Recovery,
    "failures": Failures,
    "ending": state.Ending,
}
OF_A_SESSION = {
    "number": "sessions",
    "join": "sessions",
    "slot": "sessions",
    "certificate": "sessions",
    "welcomed": "sessions",
    "held": "publishing",
    "claims": "publishing",
    "credits": "rounds",
    "receiving": "sessions",
    "heard_at": "sessions",
    "data_state": "sessions",
}
METHODS = {
    "apply": "shard",
    "raise_to": "calls",
    "set_layout": "seeding",
    "set_training": "calls",
    "note_offer_time": "rounds",
    "take": "sessions",
}
CONTAINERS = {
    *("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"),
    *("setdefault", "update"),
}
HALVES = {"calls": {"calls", "rounds"}}  # writes a part of what `rounds` has as well
MODULES = sorted(path for path in Path(rules.__file__).parent.rglob("*.py"))


def writers() -> dict[str, set[str]]:
    """Field name -> modules that may write it, of whatever part."""
    found: dict[str, set[str]] = {}
    for part, writer in WRITERS.items():
        for each in dataclasses.fields(part):
            found.setdefault(each.name, set()).add(writer)
    for name, writer in OF_A_SESSION.items():
        found.setdefault(name, set()).add(writer)
    return found


def without_keys(target: ast.expr) -> ast.expr:
    """`a.b` of `a.b[c][d]`."""
    return without_keys(target.value) if isinstance(target, ast.Subscript) else target


def written(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are assigned, deleted, or whose container is changed."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = [
                    leaf
                    for target in node.targets
                    for leaf in (target.elts if isinstance(target, ast.Tuple) else [target])
                ]
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Delete():
                targets = node.targets
            case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in CONTAINERS:
                targets = [value]
        for target in targets:
            leaf = without_keys(target)
            if isinstance(leaf, ast.Attribute) and not ast.unparse(leaf).startswith("message."):
                yield leaf  # a `message` is a protobuf under construction


def violations(source: str, modules: set[str]) -> list[str]:
    """What a module of rules with this source writes, and another one owns."""
    tree, allowed, found = ast.parse(source), writers(), []
    for target in written(tree):
        owners = allowed.get(target.attr)
        base = target.value
        if isinstance(base, ast.Attribute) and base.attr in PARTS:  # state.part.field
            owners = {WRITERS[PARTS[base.attr]]}
        if isinstance(base, ast.Name) and base.id == "state" and target.attr in PARTS:
            owners = {WRITERS[PARTS[target.attr]]}
        if isinstance(base, ast.Name) and base.id == "self":
            continue
        if owners is not None and not owners & modules:
            found.append(f"line {target.lineno}: {ast.unparse(target)} is {owners}'s")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=attr)) if (
                METHODS.get(attr) not in {None} | modules
            ):
                found.append(f"line {node.lineno}: {attr} is {METHODS[attr]}'s")
    return found


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_a_module_of_rules_writes_only_its_own_part_of_the_state(path: Path) -> None:
    assert violations(path.read_text(), HALVES.get(path.stem, {path.stem})) == []


def test_every_part_has_its_writer_and_a_session_has_one_for_each_field() -> None:
    of_the_layout = {"layout", "fragments", "sync"}  # only `set_layout` writes them
    constant = {"run_file", "expected", "number", "registrar", "pod", "instance"} | of_the_layout
    assert {each.name for each in dataclasses.fields(ShardState)} == PARTS.keys() | constant
    assert {each.name for each in dataclasses.fields(Session)} == OF_A_SESSION.keys()
    assert {*WRITERS.values(), *OF_A_SESSION.values()} <= {path.stem for path in MODULES}


WRITES = """
state.rounds.above["a-0"] = 1.0
state.ending.complete = True
state.recovery = None
del state.rounds.open[3]
state.seed.arrived.add(3)
state.set_layout(None)
slot.session = None
each.quorum_at, x = None, 1
session.credits[1] = 2
state.clock.raise_to(3)
state.history.apply(entry)
"""


def test_a_write_to_the_part_of_another_module_is_found() -> None:
    assert [line for line in WRITES.split("\n")[1:-1] if not violations(line, {"status"})] == []
