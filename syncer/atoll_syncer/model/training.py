"""The slots that are Training (rule 6), kept from input to input instead of asked one by one.

Its writer says with `note` what happens to a slot; a slot that has made no step becomes Stalled by
the time alone. So an input costs as much with a thousand learners as with eight.
"""

import heapq
import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.roster import Slot


@dataclass(slots=True, kw_only=True)
class Training:
    """`names` is another object after each change, and the same one without.

    `looks` are the moments in which a slot may have become Stalled; the first one of each counts.
    """

    names: frozenset[str] = frozenset()
    slots: dict[str, Slot] = field(default_factory=dict)  # those of `names`
    means: dict[str, float] = field(default_factory=dict)  # slot: its mean step time; 0: unknown
    step_seconds: list[float] = field(default_factory=list)  # the same in ascending order
    looks: list[tuple[float, str]] = field(default_factory=list)  # a heap
    look_at: dict[str, float] = field(default_factory=dict)

    def note(self, slot: Slot, now: float) -> None:
        name = slot.name
        if slot.state(now) != pb.SLOT_TRAINING:
            self.remove(name)
            return
        if name not in self.names:
            self.names |= {name}
            self.slots[name] = slot
        self._note_mean(name, slot.report.step_seconds)
        self._look_later(slot)

    def at(self, now: float) -> frozenset[str]:
        """Those that are Training at `now`."""
        while self.looks and self.looks[0][0] < now:
            moment, name = heapq.heappop(self.looks)
            if self.look_at.get(name) != moment:
                continue  # an earlier one was noted after it
            del self.look_at[name]
            slot = self.slots.get(name)
            if slot is None:
                continue
            if slot.state(now) == pb.SLOT_TRAINING:
                self._look_later(slot)
            else:
                self.remove(name)
        return self.names

    def remove(self, name: str) -> None:
        if name in self.names:
            self.names -= {name}
            del self.slots[name]
            self._forget_mean(name)

    def _note_mean(self, name: str, mean: float) -> None:
        if self.means.get(name) != mean:
            self._forget_mean(name)
            self.means[name] = mean
            insort(self.step_seconds, mean)

    def _forget_mean(self, name: str) -> None:
        mean = self.means.pop(name, None)
        if mean is not None:
            del self.step_seconds[bisect_left(self.step_seconds, mean)]

    def _look_later(self, slot: Slot) -> None:
        moment = slot.stalled_after
        if moment < self.look_at.get(slot.name, math.inf):
            self.look_at[slot.name] = moment
            heapq.heappush(self.looks, (moment, slot.name))
