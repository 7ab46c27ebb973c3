"""What a shard's rules cost for each Report of M learners: no I/O, no values, CPU of one thread.

M learners train at one pace, their steps spread over it, and answer each Call with their next
step. What follows from one input does not depend on M as long as the figure of a Report is the
same for all M; a tick costs M of them.

In tests/: python -m bench.reports [--learners 8 32 128 512] [--lockstep] [--profile]
"""

import argparse
import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Quorum, Region, RunFile, Sync
from atoll_syncer.model.effects import Effect, PublishHead, Send
from bench.table import show
from unit.syncer import shard_side
from unit.syncer.shard_side import Side, side

FRAGMENTS = 24  # and ticks in a period
WARM_TICKS, TICKS = 30, 24
STEP_SECONDS = 1.0
LOOK_SECONDS = 0.25  # between two calls of `tick_time`
COLUMNS = ("report", "offer", "publish", "time")


class Learners:
    """M learners of one shard, all in training, and the time that the shard took for each input."""

    def __init__(self, count: int, *, lockstep: bool) -> None:
        region = Region(name="a", learners=count)
        waits: dict[str, Any] = {"lockstep": True, "grace": False, "quorum": Quorum.ALL}
        sync = Sync(fragments=FRAGMENTS, period=FRAGMENTS, **(waits if lockstep else {}))
        job = RunFile(job="bench", regions=(region,), shards=1, steps=10**6, sync=sync)
        self.one: Side = side(job=job).start()
        self.sessions = [self.one.join(f"a-{n}") for n in range(count)]
        self.one.model(self.sessions[0])
        self.one.seed(self.sessions[0])
        self.lockstep, self.t_m, self.looked_at = lockstep, 0, self.one.now
        self.calls: dict[int, list[tuple[int, int]]] = defaultdict(list)  # session: slice, base
        self.adopted: dict[int, dict[int, int]] = {s: {} for s in self.sessions}
        self.clear()
        for session in self.sessions:
            self.report(session)

    def clear(self) -> None:
        """Measure from here on."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)

    def mean(self, kind: str) -> float:
        """Milliseconds of an input of this kind."""
        return 1e3 * self.seconds[kind] / max(1, self.counts[kind])

    def step(self) -> None:
        """Everybody makes one."""
        self.t_m += 1
        for session in self.sessions:
            self.one.now += STEP_SECONDS / len(self.sessions)
            if self.one.now >= self.looked_at + LOOK_SECONDS:
                self.looked_at = self.one.now
                self.do("time", lambda: self.one.shard.tick_time(self.one.now))
            for fragment, base in self.calls.pop(session, []):
                self.offer(session, fragment, base)
            self.report(session)

    def report(self, session: int) -> None:
        """After a step, of all slices."""
        heads, adopted = self.one.state.history.heads, self.adopted[session]
        slices = [
            pb.SliceProgress(
                slice=p,
                held=head.number,
                since=pb.Counters(steps=self.t_m - adopted.get(p, 0), tokens=10),
                digest=head.digest[:16],
            )
            for p, head in heads.items()
        ]
        t_m = self.t_m
        report = pb.Report(t_m=t_m, tokens=10 * t_m, cursor=t_m, slices=slices)
        report.training, report.step_seconds = True, STEP_SECONDS
        message = pb.ToShard(report=report)
        self.do("report", lambda: self.one.shard.message(session, message, self.one.now))
        if self.lockstep and self.t_m >= FRAGMENTS // 2:
            fragment = self.t_m % FRAGMENTS
            self.calls[session].append((fragment, heads[fragment].number))

    def offer(self, session: int, fragment: int, base: int) -> None:
        """An offer on the head, whole; nothing if a newer one was published meanwhile."""
        head, steps = self.one.state.history.heads[fragment], self.t_m
        if head.number != base:
            return
        count = pb.Counters(steps=steps, tokens=10)
        offer = pb.Offer(slice=fragment, counters=count, t_m=steps - 1, cursor=steps)
        offer.base, offer.base_digest, offer.capture = base, head.digest, steps
        transfer = pb.Transfer(offer=offer, encoding=pb.BF16)
        shard, now = self.one.shard, self.one.now
        self.do("offer", lambda: shard.transfer_started(session, transfer, now))
        self.do("offer", lambda: shard.transfer_verified(session, transfer, now))
        self.counts["offer"] -= 1  # two inputs of one

    def do(self, kind: str, call: Callable[[], list[Effect]]) -> None:
        """Measure one input, and do what it asks for."""
        began = time.thread_time()
        effects = call()
        self.seconds[kind] += time.thread_time() - began
        self.counts[kind] += 1
        self.one.effects.clear()
        self.one.feed(effects)
        for effect in list(self.one.effects):
            match effect:
                case Send(session, message) if message.HasField("call"):
                    self.calls[session].append((message.call.slice, message.call.base))
                case PublishHead(session, fragment):
                    self.adopted[session][fragment] = self.t_m
                    began = time.thread_time()
                    self.one.shard.publish(session, fragment)
                    self.seconds["publish"] += time.thread_time() - began
                    self.counts["publish"] += 1


def measured(count: int, *, lockstep: bool, profile: cProfile.Profile | None) -> Learners:
    """So many learners, after some ticks."""
    learners = Learners(count, lockstep=lockstep)
    for _ in range(WARM_TICKS):
        learners.step()
    learners.clear()
    commits = learners.one.state.history.commits
    if profile is not None:
        profile.enable()
    for _ in range(TICKS):
        learners.step()
    if profile is not None:
        profile.disable()
    assert learners.one.state.history.commits >= commits + TICKS // 2, "nothing was merged"
    return learners


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument("--lockstep", action="store_true")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    profile = cProfile.Profile() if given.profile else None
    rows = []
    with patch.object(shard_side, "FRAGMENTS", FRAGMENTS):
        for count in given.learners:
            each = measured(count, lockstep=given.lockstep, profile=profile)
            tick = sum(each.seconds.values()) / TICKS
            rows.append([count, *(f"{each.mean(kind):.3f}" for kind in COLUMNS), f"{tick:.3f}"])
    show("ms of CPU for one input", ["M", *COLUMNS, "s a tick"], rows)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
