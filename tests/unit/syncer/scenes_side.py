"""The scenes of the folder `scenes`, and the longer stories that several of them have in common."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Expected
from atoll_syncer.model import log
from atoll_syncer.model.effects import EndSession
from unit.syncer import shard_side
from unit.syncer.scenes_words import Words
from unit.syncer.shard_side import RUN, version

FOLDER = Path(__file__).parent / "scenes"


def scenes() -> dict[str, str]:
    """The text of each scene by its file and name."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for scene in path.read_text().split("\n== ")[1:]:
            name, _, text = scene.partition("\n")
            assert found.setdefault(f"{path.stem}: {name}", text) is text, f"{name} is there twice"
    return found


class Play(Words):
    """One scene; see scenes_words."""

    def trained(self, *slots: str, **sync: Any) -> None:
        """All but the last of these learners have made some commits."""
        self.begun(*slots, steps=100_000, **sync)
        assert self.drives(1, 16, *slots[:-1])
        self.one.ends()

    def drives(self, first: int, last: int, *slots: str, lie: Callable[[], Any] = bool) -> int:
        """Honest learners step once a second and answer every Call; returns the new commits."""
        one = self.one
        before = one.state.history.commits
        for t_m in range(first, last + 1):
            self.steps(t_m, t_m, *slots)
            lie()
            one.feed(one.shard.tick_time(one.now))
            for session, call in one.sent("call"):
                if session in [self.s[slot] for slot in slots]:
                    one.offer(session, call.slice, t_m)
            one.effects = [each for each in one.effects if isinstance(each, EndSession)]
        return one.state.history.commits - before

    def merging(self, merges: int, *tokens: int) -> None:
        """Until so many merges, of offers with so many tokens a step each."""
        one, sessions, t_m = self.one, [*self.s.values()], 0
        while one.state.history.commits < merges:
            t_m += 1
            assert t_m < 40 * merges, "no round comes"
            self.steps(t_m, t_m)
            for session, call in one.sent("call"):
                said = tokens[sessions.index(session)] * t_m
                counters = pb.Counters(steps=t_m, tokens=said)
                one.offer(session, call.slice, t_m, counters=counters)

    def untrue(self, code: str, lie: Callable[[], Any]) -> None:
        """What b-0 says ends its session, and nothing else happens."""
        self.trained("a-0", "b-0")
        entries, tick = len(self.one.entries), self.one.state.clock.tick
        lie()
        self.ends(code)
        assert (len(self.one.entries), self.one.state.clock.tick) == (entries, tick)
        self.wait(31)
        assert self.drives(17, 32, "a-0") >= 2
        self.restart(fresh=False)
        self.join("a-0", "new", run=RUN)
        assert self.s["a-0"] in self.one.state.sessions.open

    def reports(self, **fields: Any) -> None:
        told = {"t_m": 1, "steps": 1, **fields}
        self.untrue("BAD_MESSAGE", lambda: self.report("b-0", **told))

    def joins(self, **fields: Any) -> None:
        for observer in (False, True):
            told = {"run": RUN, "observer": observer, **fields}
            self.untrue("BAD_MESSAGE", partial(self.join, "b-0", "liar", **told))

    def hands_back(self, *lineage: pb.SlotMerged) -> None:
        """b-0 says that it holds a version, and gives it with this lineage."""

        def lie() -> None:
            claim = pb.SliceProgress(slice=0, held=50, digest="x" * 16)
            self.report("b-0", 1, slices=[claim])
            self.wait(1)
            self.held("b-0", 0, 50, name="e" * 64, lineage=lineage)

        self.untrue("BAD_TRANSFER", lie)

    def last(self, *slots: str, reach: bool = True, **sync: Any) -> None:
        """Every slice has its last round open, at step 20."""
        self.begun(*slots, steps=20, quorum=4, **sync)
        self.steps(1, 20)
        self.wait(0.0)
        if reach:
            self.one.hear_tick(20)
            self.join("b-1", tick_seen=20)
            for slot in slots:
                self.report(slot, 21)

    def over(self, *slots: str) -> None:
        self.last(*slots)
        self.offers(9, *slots)

    def idle(self, seconds: int) -> None:
        """Nobody answers the Calls of the last rounds."""
        for n in range(seconds):
            self.wait(1.0)
            for slot in ("a-0", "a-1"):
                self.report(slot, 22 + n)

    def nine(self) -> None:
        """Two learners of a long job in lock-step at step 9, one version each slice."""
        self.begun("a-0", "a-1", overlap=0, lockstep=True, quorum=2, steps=1000)
        for tick in range(1, 10):
            self.stand(1, tick, waits=False)
            for slot in ("a-0", "a-1") if tick in (4, 8) else ():
                self.offer(slot, 1 if tick == 4 else 0, tick, t_m=tick)
        assert [each.number for each in self.one.state.history.heads.values()] == [1, 1]
        self.clear()

    def on(self, first: int, last: int) -> None:
        """From step 9 on, with hand-overs at 12 and 16."""
        for tick in range(first, last + 1):
            self.wait(5.0)
            for slot in ("a-0", "a-1"):
                self.report(slot, tick, steps=4, step_seconds=5.0)
            for slot in ("a-0", "a-1") if tick in (12, 16) else ():
                self.offer(slot, 1 if tick == 12 else 0, 4, t_m=tick)

    def stand(self, times: int, at: int = 9, *, waits: bool = True) -> None:
        for _ in range(times):
            self.wait(10.0 if waits else 0.0)
            for slot in ("a-0", "a-1"):
                self.report(slot, at, waiting=waits, step_seconds=5.0)

    def waiting(self, expected: Expected) -> None:
        """Version 0 is durable, and one of the job's learners is there."""
        self.process(expected=expected)
        self.join("a-0")
        self.model("a-0")
        self.seed("a-0")

    def follows(self, **fields: Any) -> None:
        """The next instance of a-0 is welcomed."""
        self.one.sent("welcome")
        self.join("a-0", "new", **{"starting": True, **fields})
        self.sent("welcome", "a-0")

    def at_end(self) -> None:
        self.clear()
        self.one.append(log.Ended(tick=20))
        self.part("part-0", "digest")

    def counted(self, *reports: int) -> None:
        """So many tokens are reported of a-0 and b-0; a-0 alone is in the commit after that."""
        self.begun("a-0", "b-0")
        for t_m in range(1, 6):
            self.later(1.0)
            for slot, tokens in zip(("a-0", "b-0"), reports, strict=True):
                self.report(slot, t_m, tokens=tokens * t_m // 5)
        self.offer("a-0", 1, 5)
        self.wait(10.0)

    def goes_on(self, slot: str, tokens: int) -> None:
        """This learner trains until slice 0 is due, and alone answers its Call."""
        t_m = 5
        while 0 not in self.one.state.rounds.open:
            t_m += 1
            self.later(1.0)
            self.report(slot, t_m, tokens=tokens)
        self.offer(slot, 0, t_m)
        self.wait(10.0)

    def damaged(self, *torn: int) -> None:
        """The registrar of a run with some versions, restarted on a log with a damaged entry."""
        self.begun("a-0", "b-0", quorum=2)
        for t_m in range(1, 18):
            self.steps(t_m, t_m)
            for session, call in self.one.sent("call"):
                self.one.offer(session, call.slice, t_m)
        assert self.one.state.history.commits >= 3
        self.restart(started=False)
        self.one.state.history.lose(1)
        self.one.state.history.torn.update(torn)
        self.one.start()
        self.lost()

    def back(self, slot: str, *above: int) -> None:
        """A learner that holds the heads, or versions so much above them."""
        history = self.one.state.history
        known = history.taken[slot]
        held = [
            version(n, head.number + above[n], epoch=head.epoch)
            for n, head in sorted(history.heads.items())
        ]
        fields: dict[str, Any] = {"run": RUN, "held": held, "epochs_seen": [1]}
        self.join(slot, known.instance, incarnation=known.incarnation, **fields)

    def holds(self, slot: str, run: str | bool, incarnation: int = 0) -> None:
        """A learner that holds a version of a run joins."""
        known: dict[str, Any] = {"run": f"{run}", "held": [version(0, 9, run=f"{run}")]}
        self.join(slot, f"{slot} in {run}", incarnation=incarnation, **known)

    def other(self, slot: str, *shape: int) -> None:
        """A learner with another model joins, and sends it."""
        names = [f"other{n}" for n in range(shard_side.FRAGMENTS)]
        known = {"shape": shape or (4,), "dtype": "float32", "merge": "rda"}
        tensors = [TensorSpec(name=name, **known) for name in names]  # type: ignore[arg-type]
        model = build_layout(tensors, shard_side.FRAGMENTS, 1)
        self.join(slot, layout_digest=model.digest)
        self.say(slot, model=model.to_model())
