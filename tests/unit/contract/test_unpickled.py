"""Nothing that another process has sent is unpickled, by us or by what we call."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = [
    path
    for part in ("operator", "worker", "syncer", "protos")
    for path in (ROOT / part).rglob("*.py")
]
MODULES = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
CALLS = {  # of torch.distributed and multiprocessing
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("recv_object_list", "send_object_list", "Listener", "Manager", "Pipe", "Queue"),
}
OPTIONS = {("allow_pickle", True), ("weights_only", False)}  # of numpy and torch
FORMS = """
import pickle
from multiprocessing import Pipe
import torch.distributed as dist
dist.all_gather_object([], None)
torch.load("file", weights_only=False)
"""


def unpickling(source: str) -> Iterator[str]:
    """What of a module reads pickles."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module for _ in names if module.split(".")[0] in MODULES)
                if module.startswith(("torch", "multiprocessing")):
                    yield from (each.name for each in names if each.name in CALLS)
            case ast.Attribute(value=ast.Name(id="dist" | "distributed"), attr=name):
                yield from {name} & CALLS
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)):
                yield from (name for each in OPTIONS if each == (name, value))


def test_all_forms_are_seen() -> None:
    found = ["pickle", "Pipe", "all_gather_object", "weights_only"]
    assert sorted(unpickling(FORMS)) == sorted(found)


def test_no_module_reads_pickles() -> None:
    assert len(SOURCES) > 1
    assert [path for path in SOURCES if [*unpickling(path.read_text())]] == []
