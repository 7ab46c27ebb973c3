"""A queue of runs that goes on where it was: a file for each run that is finished."""

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeAlias

from bench.science.setting import Setting

Result: TypeAlias = Mapping[str, float]
Make: TypeAlias = Callable[[Setting], Result]


def file_of(folder: Path, setting: Setting) -> Path:
    return folder / "runs" / f"{setting.name}.json"


def result(folder: Path, setting: Setting) -> Result | None:
    """Of a finished run; None: it is not there."""
    try:
        document: dict[str, Any] = json.loads(file_of(folder, setting).read_text())
    except FileNotFoundError:
        return None
    found: Result = document["result"]
    return found


def missing(folder: Path, settings: Iterable[Setting]) -> list[Setting]:
    """Each once, in the order given."""
    each_once = {setting.name: setting for setting in settings}
    return [each for each in each_once.values() if not file_of(folder, each).exists()]


def make(folder: Path, setting: Setting, train: Make) -> None:
    """Make a run. Its file is there whole, or not at all."""
    found = dict(train(setting))
    path = file_of(folder, setting)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps({"settings": setting.to_json(), "result": found}, indent=1))
    partial.replace(path)


def end_with_parent() -> None:
    """A killed queue leaves no process behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def work(folder: Path, settings: Iterable[Setting], train: Make, workers: int) -> int:
    """Make what is missing, a process for each core; how many of the runs failed."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    todo = missing(folder, settings)
    failed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as pool:
        running = {pool.submit(make, folder, each, train): each for each in todo}
        try:
            for number, each in enumerate(as_completed(running), 1):
                error = each.exception()
                failed += error is not None
                said = "made" if error is None else f"failed: {error!r}"
                name = running[each].name
                sys.stderr.write(f"{number} of {len(todo)}: {name} {said}\n")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed
