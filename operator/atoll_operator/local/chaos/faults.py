"""The faults of a plan, begun by the passes of a run; a line of chaos.jsonl for each.

Their times count from the first pass in which all train. What damages a store also kills its shard
in the same moment, since a shard reads its folder only when it starts.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from atoll_operator.local.chaos import means
from atoll_operator.local.chaos.links import Links
from atoll_operator.local.chaos.means import NotMadeError
from atoll_operator.local.chaos.plan import LINKS, DrawnFault, FaultWord
from atoll_operator.local.folder.run_files import CHAOS_FILE, STORES_FOLDER, Appended, Files
from atoll_operator.local.supervision.child import Child
from atoll_operator.local.supervision.supervisor import Supervisor
from atoll_protos.network.addresses import split

DAMAGES: Final = {
    FaultWord.EMPTY_STORE: means.empty,
    FaultWord.FLIP_BYTE: means.flip_byte,
    FaultWord.TRUNCATE: means.truncate,
}


@dataclass(slots=True, kw_only=True)
class LastingFault:
    """A fault that lasts; `undo` takes it back."""

    fault: DrawnFault
    line: dict[str, Any]
    undo: contextlib.ExitStack


@dataclass(slots=True, kw_only=True)
class Chaos:
    """The faults of a run; `waiting` are sorted by time.

    They begin in a pass of the run, and end in threads of their own: while a shard stands still, a
    pass takes longer than some faults.
    """

    waiting: list[DrawnFault]
    supervisor: Supervisor
    links: Links
    files: Files
    began: float | None = None  # when all trained, in monotonic seconds
    going: list[LastingFault] = field(default_factory=list)
    _ending: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, now: float, *, all_train: bool) -> None:
        """Begin what is due; `now` is in monotonic seconds."""
        if self.began is None and all_train:
            self.began = now
        while self.began is not None and self.waiting and now >= self.began + self.waiting[0].at:
            self._begin(self.waiting.pop(0))

    def seconds_left(self, now: float) -> float:
        """Until the next one is due."""
        if self.began is None or not self.waiting:
            return math.inf
        return max(0.0, self.began + self.waiting[0].at - now)

    def end(self) -> None:
        """Take back what lasts, before the processes of the run are stopped."""
        if self.waiting:
            self.files.say(f"chaos: the run is over before {len(self.waiting)} of the faults")
        self.waiting.clear()
        for each in [*self.going]:
            self._end(each)

    def _begin(self, fault: DrawnFault) -> None:
        self.files.say(f"chaos: {fault}")
        begun = LastingFault(fault=fault, line=_line(fault), undo=contextlib.ExitStack())
        self.going.append(begun)
        try:
            self._make(fault, begun.undo)
        except (NotMadeError, OSError) as error:
            self.files.say(f"chaos: {fault} is not made: {error}")
            begun.line["not_made"] = str(error)
            self._end(begun)
        else:
            self._end_after(begun)

    def _end_after(self, begun: LastingFault) -> None:
        if not begun.fault.seconds:
            self._end(begun)
            return
        timer = threading.Timer(begun.fault.seconds, self._end, [begun])
        timer.daemon = True
        begun.undo.callback(timer.cancel)
        timer.start()

    def _end(self, begun: LastingFault) -> None:
        with self._ending:
            if begun not in self.going:
                return
            try:
                begun.undo.close()
            except OSError as error:
                self.files.say(f"chaos: {begun.fault} is not taken back: {error}")
            begun.line["ended"] = begun.line["time"] = time.time()
            file = Appended(self.files.out / CHAOS_FILE)
            file.add(json.dumps(begun.line).encode() + b"\n")
            file.flush()
            self.going.remove(begun)

    def _make(self, fault: DrawnFault, end: contextlib.ExitStack) -> None:
        if fault.word in LINKS:
            link, owner = (
                self.links.of(fault.target, fault.shard),
                self.supervisor.meant(fault.shard),
            )
            _, port = split(owner[0].planned.endpoint)
            end.enter_context(link.fault(fault.word, fault.amount, port))
            return
        children = self.supervisor.meant(fault.target)
        store = self.files.out / STORES_FOLDER / fault.target.removeprefix("shard-")
        match fault.word:
            case FaultWord.PAUSE:
                end.enter_context(means.paused(children))
            case FaultWord.SLOW_CPU:
                end.enter_context(means.slowed(children, fault.amount))
            case FaultWord.FILL_DISK:
                end.enter_context(means.full_disk(children[0]))
            case FaultWord.LOSE_STORE:
                end.enter_context(means.lost_store(store))
            case FaultWord.KILL:
                if not self._kill(children):
                    raise NotMadeError("it did not run")
            case _:
                self._kill(children)
                DAMAGES[fault.word](store)

    def _kill(self, children: Sequence[Child]) -> bool:
        """Whether there was something to kill; it has ended."""
        running = [child.process for child in children if child.process is not None]
        self.supervisor.kill(children[0])
        for process in running:
            process.wait()
        return bool(running)


def _line(fault: DrawnFault) -> dict[str, Any]:
    line: dict[str, Any] = {
        "fault": fault.word,
        "target": [fault.target, fault.shard] if fault.shard else fault.target,
        "planned": fault.at,
        "seconds": fault.seconds,
    }
    if fault.amount:
        line["amount"] = fault.amount
    return line | {"began": time.time()}
