"""Each part of a shard's State is written by one module of rules (see model/state)."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_syncer import rules
from atoll_syncer.model import state
from atoll_syncer.model.clock import Clock
from atoll_syncer.model.history import History
from atoll_syncer.model.recovery import Asked, Failures, Recovery
from atoll_syncer.model.roster import Session, Slot
from atoll_syncer.model.round import Round

WRITERS: dict[type, str] = {
    History: "shard",
    state.Run: "runs",
    state.Term: "runs",
    state.Sessions: "sessions",
    Slot: "sessions",
    state.ShutOut: "shut_out",
    state.Seed: "seeding",
    Clock: "clock",
    state.Rounds: "rounds",
    Round: "rounds",
    state.DataStates: "data_states",
    Recovery: "recovery",
    Asked: "recovery",
    Failures: "recovery",
    state.Companion: "companions",
    state.Ending: "ending",
}
PARTS = {  # the State's own fields; to write one is to replace the part
    "history": History,
    "run": state.Run,
    "term": state.Term,
    "sessions": state.Sessions,
    "shut_out": state.ShutOut,
    "seed": state.Seed,
    "clock": Clock,
    "rounds": state.Rounds,
    "data_states": state.DataStates,
    "recovery": Recovery,
    "failures": Failures,
    "companion": state.Companion,
    "ending": state.Ending,
}
OF_A_SESSION = {
    "number": "sessions",
    "join": "sessions",
    "certificate": "sessions",
    "welcomed": "sessions",
    "held": "publishing",
    "claims": "publishing",
    "credits": "rounds",
    "receiving": "transfers",
    "heard_at": "transfers",
    "data_state": "transfers",
}
METHODS = {"apply": "shard", "raise_to": "clock", "set_training": "clock", "take": "sessions"}
CONTAINERS = {
    *("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"),
    *("setdefault", "update"),
}
MODULES = sorted(path for path in Path(rules.__file__).parent.glob("*.py"))


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


def violations(source: str, module: str) -> list[str]:
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
        if owners is not None and module not in owners:
            found.append(f"line {target.lineno}: {ast.unparse(target)} is {owners}'s")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=attr)) if METHODS.get(attr, module) != module:
                found.append(f"line {node.lineno}: {attr} is {METHODS[attr]}'s")
    return found


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_a_module_of_rules_writes_only_its_own_part_of_the_state(path: Path) -> None:
    assert violations(path.read_text(), path.stem) == []


def test_every_part_has_its_writer_and_a_session_has_one_for_each_field() -> None:
    constant = {"run_file", "expected", "number", "pod", "instance"}
    assert {each.name for each in dataclasses.fields(state.State)} == PARTS.keys() | constant
    assert {each.name for each in dataclasses.fields(Session)} == OF_A_SESSION.keys()
    assert {*WRITERS.values(), *OF_A_SESSION.values()} <= {path.stem for path in MODULES}


@pytest.mark.parametrize(
    "line",
    [
        "state.rounds.late += 1",
        "state.ending.complete = True",
        "state.recovery = None",
        "del state.rounds.open[3]",
        "state.seed.arrived.add(3)",
        "slot.session = None",
        "each.quorum_at, x = None, 1",
        "session.credits[1] = 2",
        "state.clock.raise_to(3)",
        "state.history.apply(entry)",
    ],
)
def test_a_write_to_the_part_of_another_module_is_found(line: str) -> None:
    assert violations(line, "status")
