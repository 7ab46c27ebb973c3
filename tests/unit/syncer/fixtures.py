"""One shard of the rules in a test's hands: what happens to it, and what is seen of it.

A test gives `play` texts of commands, `;` between them: a command is a method of `Play` with its
arguments, which are literals, or else texts: `join a-0 instance=new`. Slots stand for their newest
sessions, `a-0'` for the one before. `see` compares what a dotted path leads to, such as
`slots.a-0.state`, with a value. The texts are data: what needs more is Python, in the test.

The folder `scenes` has tests that need no Python as files of such texts, `== name` before each.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Expected, Limit, ListedMachine, Region
from atoll_protos.job.schedule import Length
from atoll_syncer.model import effects, log
from atoll_syncer.model.effects import EndSession
from atoll_syncer.model.history import History
from atoll_syncer.model.roster import Certificate, JobClock, MergeFindings
from atoll_syncer.rules.status import status
from unit.syncer import shard_side
from unit.syncer.shard_side import KEY, RUN, Side, digest, side, version

FOLDER = Path(__file__).parent / "scenes"
FIELD = re.compile(r"\w+=(?!=)")
CERTIFICATE = ("region", "machine", "generation")
COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "!=": operator.ne,
}


def scenes() -> dict[str, str]:
    """Return the text of each scene by its file and name."""
    texts: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for scene in path.read_text().split("\n== ")[1:]:
            name, _, text = scene.partition("\n")
            assert texts.setdefault(f"{path.stem}: {name}", text) is text, f"{name} is there twice"
    return texts


def listed(start_seconds: int = 0, /, **learners: int) -> Expected:
    regions = tuple(Region(name=name, learners=count) for name, count in learners.items())
    return Expected(regions=regions, start_seconds=start_seconds)


def taken(slot: str, incarnation: int = 1, instance: str = "", uid: str = "uid") -> log.Taken:
    return log.Taken(
        slot=slot, incarnation=incarnation, uid=uid, instance=instance or f"{slot}-process"
    )


def lineage(slot: str, **fields: Any) -> pb.SlotMerged:
    return pb.SlotMerged(slot=slot, **fields)


class Play:
    """The shard `one`, the sessions `s` of its slots, the heads of transfers under way."""

    def __init__(self) -> None:
        self.one: Side
        self.s: dict[str, int] = {}
        self.head: dict[str, pb.Transfer] = {}
        self.last: list[pb.End] = []  # of the newest `ends` or `ended`
        self.messages: list[Any] = []  # of the newest `sent`
        self.merging: list[effects.MergeOffers] = []  # of the newest `merges`
        self.lines: list[dict[str, Any]] = []  # of the newest `tape`
        self.found: list[Any] = []  # of the newest `effect`

    def __call__(self, text: str) -> None:
        for line in text.splitlines():
            for command in line.partition("# ")[0].split(";"):
                word, _, rest = command.strip().partition(" ")
                if word == "see":
                    self.see(rest)
                elif word:
                    arguments = rest.split()
                    fields = dict(each.split("=", 1) for each in arguments if FIELD.match(each))
                    values = [self.value(each) for each in arguments if not FIELD.match(each)]
                    getattr(self, word)(*values, **{k: self.value(v) for k, v in fields.items()})

    @staticmethod
    def value(text: str) -> Any:
        """Return what a text stands for: a literal, the run, or itself."""
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return RUN if text == "RUN" else text

    def see(self, text: str) -> None:
        """Compare what is at a path: `PATH`, `not PATH`, or `PATH [has|lacks|only|>...] VALUE`."""
        path, _, wanted = text.removeprefix("not ").partition(" ")
        value = self.at(path)
        word, _, rest = wanted.partition(" ")
        if not wanted:
            assert bool(value) != text.startswith("not "), text
        elif wanted == "retry":
            assert all(end.retry for end in value), text
        elif word in ("has", "lacks"):
            assert self.has(value, rest) == (word == "has"), f"{text}: {value}"
        elif word == "only":
            keys = [self.key(value, each) for each in rest.split()]
            assert sorted(value) == sorted(keys), f"{text}: {value}"
        elif word in COMPARED:
            assert COMPARED[word](value, self.value(rest)), f"{text}: {value}"
        else:
            enumerated = getattr(pb, wanted, None) if wanted.isupper() else self.s.get(wanted)
            assert value in (enumerated, self.value(wanted)), f"{text}: {value}"

    def at(self, path: str) -> Any:
        value: Any = self
        for name in path.split("."):
            if isinstance(value, Mapping | list | tuple):
                value = value[self.key(value, name)]
            elif not isinstance(value, Play) and hasattr(value, "__getitem__"):
                value = value[int(name)]  # a repeated field of a message
            else:
                value = getattr(value, name)
        return value

    def key(self, container: Any, name: str) -> Any:
        """Return what a name is in a container: itself, the session of a slot, or a number."""
        if isinstance(container, Mapping | set | frozenset) and name in container:
            return name
        return self.s.get(name, self.value(name))

    def has(self, container: Any, name: str) -> bool:
        if hasattr(container, "HasField"):
            return bool(container.HasField(name))
        return self.value(name) in container or self.s.get(name, object()) in container

    @property
    def state(self) -> Any:  # scenes know which of its parts are there
        return self.one.state

    @property
    def history(self) -> History:
        return self.one.state.history

    @property
    def clock(self) -> JobClock:
        return self.one.state.clock

    @property
    def now(self) -> float:
        return self.one.now

    @property
    def open(self) -> dict[int, Any]:
        rounds: dict[int, Any] = self.state.rounds.open
        return rounds

    @property
    def heads(self) -> dict[int, int]:
        return {n: head.number for n, head in sorted(self.history.heads.items())}

    @property
    def effects(self) -> list[Any]:
        return self.one.effects

    @property
    def newest(self) -> dict[int, log.Committed]:
        """Return the newest commit of each slice."""
        commits = (entry for entry in self.one.entries if isinstance(entry, log.Committed))
        return {entry.slice: entry for entry in commits}

    @property
    def training(self) -> frozenset[str]:
        return self.one.state.standing(self.now).training

    @property
    def shown(self) -> pb.StatusReply:
        return status(self.state, self.now)

    @property
    def slots(self) -> dict[str, pb.SlotStatus]:
        return {slot.slot: slot for slot in self.shown.slots}

    def slot(self, session: int) -> str:
        return next(slot for slot, number in self.s.items() if number == session)

    def publish(self, slot: str, fragment: int) -> Any:
        """Return the head as the session of a slot gets it."""
        return self.one.shard.publish(self.s[slot], fragment)

    def call(self, request: Any) -> None:
        self.one.feed(self.one.shard.registrar_request(1, request, self.one.now))

    # ------------------------------------------------------------ what happens

    def begun(self, *slots: str, **sync: Any) -> None:
        """A registrar with version 0 and these learners in training, at step 0."""
        self.one, sessions = shard_side.begun(*slots, **sync)
        self.s.clear()
        self.s.update(zip(slots, sessions, strict=True))

    def round(self, *slots: str, **sync: Any) -> None:
        """As `begun`; then slice 1 is due at tick 4 and called."""
        self.begun(*slots, **sync)
        self.steps(1, 5)

    def lockstep(self, *slots: str, at: int = 4, **sync: Any) -> None:
        self.begun(*slots, **{"overlap": 0, "lockstep": True, "quorum": 2, **sync})
        for slot in slots:
            self.report(slot, at, waiting=True)

    def process(
        self, *, started: bool = True, regions: str = "", start_seconds: int = 0, **fields: Any
    ) -> None:
        """A process of its own, with `shards` and what `side` takes; regions are as `a:2,b:2`."""
        if regions:
            counts = (region.split(":") for region in regions.split(","))
            learners = {name: int(count) for name, count in counts}
            fields["expected"] = listed(start_seconds, **learners)
        known = ("shard", "fresh", "pod", "entries", "history", "expected", "length", "job")
        job = {key: fields.pop(key) for key in [*fields] if key not in known}
        fields.setdefault("job", shard_side.run_file(**job))
        self.one = side(**fields)
        self.s.clear()
        if started:
            self.one.start()

    def restart(self, **fields: Any) -> None:
        self.process(**{"entries": tuple(self.one.entries), "job": self.one.job, **fields})

    def restart_unread(self, **fields: Any) -> None:
        """Its values are not read yet."""
        self.restart(started=False, **fields)
        self.one.reads = False
        self.one.start()

    def read(self, *fragments: int) -> None:
        for fragment in fragments:
            self.one.read(fragment)

    def empty(self, *alive: str, **sync: Any) -> None:
        """Shard 1 of a job that had begun, with a new store."""
        self.process(shard=1, shards=2, **sync)
        for _ in range(2):
            self.told(begun=True, alive=alive)

    def start(self) -> None:
        self.one.start()

    def hear_tick(self, tick: int) -> None:
        self.one.hear_tick(tick)

    def join(
        self,
        slot: str,
        instance: str = "",
        *,
        name: str = "",
        versions: str = "",
        lasts: float = math.inf,
        **fields: Any,
    ) -> None:
        """Versions are as `slice:number:run`; the certificate expires after `lasts` seconds."""
        slot = "" if slot == "-" else slot
        if versions:
            named = (each.split(":") for each in versions.split(","))
            fields["held"] = [version(int(n), int(k), run="".join(r) or RUN) for n, k, *r in named]
        if shows := {key: fields.pop(key) for key in CERTIFICATE if key in fields}:
            fields["certificate"] = Certificate(until=self.now + lasts, **shows)
        elif lasts < math.inf:
            fields["certificate"] = Certificate(until=self.now + lasts)
        self.note(name or slot or "eye", self.one.join(slot, instance, **fields))

    def note(self, name: str, session: int) -> None:
        if name in self.s:
            self.s[f"{name}'"] = self.s[name]
        self.s[name] = session

    def holder(self, slot: str, *numbers: int, epoch: int = 1, incarnation: int = 1) -> None:
        """A learner joins with these versions; the shard begins a term above what it has seen."""
        fields: dict[str, Any] = {
            "incarnation": incarnation,
            "run": RUN,
            "held": [version(fragment, n, epoch=epoch) for fragment, n in enumerate(numbers)],
            "epochs_seen": [1, epoch][: self.one.job.shards],
            "tick_seen": 40,
        }
        session = self.one.join(slot, **fields)
        if session not in self.state.sessions.open:  # the shard began a higher epoch (rule 20)
            session = self.one.join(slot, **fields)
        self.one.model(session)
        self.note(slot, session)

    def leave(self, slot: str) -> None:
        self.one.leave(self.s[slot])

    def model(self, slot: str) -> None:
        self.one.model(self.s[slot])

    def seed(self, slot: str, *fragments: int) -> None:
        for fragment in fragments or range(shard_side.FRAGMENTS):
            transfer = pb.Transfer(seed=pb.Seed(slice=fragment), encoding=pb.F32)
            self.one.send(self.s[slot], transfer)

    def steps(self, first: int, last: int, *slots: str, **fields: Any) -> None:
        """These learners, or all that are there, report each step a second after the other."""
        known = [self.s[slot] for slot in slots or self.s]
        here = [number for number in known if number in self.one.state.sessions.open]
        shard_side.step_all(self.one, here, range(first, last + 1), **fields)

    def report(self, slot: str, t_m: int, steps: int | None = None, **fields: Any) -> None:
        self.one.report(self.s[slot], t_m, steps, **fields)

    def offer(
        self, slot: str, fragment: int, steps: int, on: int | None = None, **fields: Any
    ) -> None:
        """On the head, or on version `on`."""
        if on is not None:
            fields |= {"base": on, "base_digest": digest(fragment, on)}
        self.one.offer(self.s[slot], fragment, steps, **fields)

    def offers(self, steps: int, *slots: str) -> None:
        """Of all slices, by these learners."""
        for fragment in range(shard_side.FRAGMENTS):
            for slot in slots:
                self.offer(slot, fragment, steps)

    def begins(self, slot: str, steps: int, fragment: int = 1, **fields: Any) -> None:
        """The head of an offer on version 0 has come."""
        counters = pb.Counters(steps=steps, tokens=10 * steps)
        known = {"base_digest": digest(fragment, 0), "capture": steps, "counters": counters}
        offer = pb.Offer(slice=fragment, **{**known, **fields})
        self.starts(slot, pb.Transfer(offer=offer, encoding=pb.BF16))

    def starts(self, slot: str, head: pb.Transfer) -> None:
        self.head[slot] = head
        one = self.one
        one.feed(one.shard.transfer_started(self.s.get(slot, 0), head, one.now))

    def whole(self, slot: str, of: str = "") -> None:
        one = self.one
        one.feed(one.shard.transfer_verified(self.s[slot], self.head[of or slot], one.now))

    def bad(self, slot: str, reason: str, *, final: bool = False) -> None:
        one, head = self.one, self.head[slot]
        one.feed(one.shard.transfer_rejected(self.s[slot], reason, one.now, head, final=final))

    def refuse(self, slot: str, steps: int, **fields: Any) -> None:
        """An offer that is not finite."""
        self.begins(slot, steps, **fields)
        self.bad(slot, "slice 1: values are not finite", final=True)

    def held(self, slot: str, fragment: int, number: int, **fields: Any) -> None:
        names = {key: fields.pop(key) for key in ("epoch", "run", "name") if key in fields}
        self.one.held(self.s[slot], version(fragment, number, **names), **fields)

    def say(self, slot: str, **kind: Any) -> None:
        message = pb.ToShard(**kind)
        self.one.feed(self.one.shard.message(self.s[slot], message, self.one.now))

    def wait(self, seconds: float) -> None:
        self.one.wait(seconds)

    def later(self, seconds: float) -> None:
        """Time passes, and the driver does not look."""
        self.one.now += seconds

    def alive(self, seconds: float, *slots: str) -> None:
        """Time in which these learners say that they are alive."""
        for _ in range(int(seconds)):
            for slot in slots:
                self.report(slot, 0)
            self.one.wait(1.0)

    def lost(self, *fragments: int) -> None:
        self.one.feed(self.one.shard.lost(set(fragments), self.one.now))

    def owner(self, slot: str, uid: str, word: int = 0) -> None:
        self.call(pb.SetOwnerRequest(slot=slot, uid=uid, generation=word))

    def hello(self, shard: int = 1, **fields: Any) -> None:
        """Another shard's Hello."""
        self.call(pb.HelloRequest(shard=shard, **{"run_hash": self.one.job.hash, **fields}))

    def told(self, kind: Any = pb.HelloReply, **fields: Any) -> None:
        """The registrar's answer."""
        known = {"run": RUN, "key": KEY} if kind is pb.HelloReply else {}
        self.one.feed(self.one.shard.answered(kind(**{**known, **fields}), self.one.now))

    def read_list(self, expected: Expected) -> None:
        self.one.feed(self.one.shard.expected_heard(expected, self.one.now))

    def listing(self, start_seconds: int = 0, **learners: int) -> None:
        self.read_list(listed(start_seconds, **learners))

    def revoke(self, generation: int) -> None:
        """Certificates of region b with lower generations."""
        limits = (Limit(region="b", generation=generation),)
        self.read_list(Expected(regions=listed(a=2, b=2).regions, limits=limits))

    def limit(self, tokens: int) -> None:
        """So many tokens a step are the most in region b."""
        self.read_list(Expected(limits=(Limit(region="b", tokens_per_step=tokens),)))

    def machines(self, **slots: str) -> None:
        """Regions a and b, and these machines."""
        names = {name: tuple(each.split(",")) for name, each in slots.items()}
        machines = tuple(ListedMachine(name=name, slots=slots) for name, slots in names.items())
        self.read_list(Expected(regions=listed(a=2, b=2).regions, machines=machines))

    def length(self, revision: int, steps: int | None = None, tokens: int = 0) -> None:
        """The operator's file says how long the job is."""
        ends = () if steps is None else (steps,)
        told = Length(revision=revision, steps=steps, tokens=tokens, ends=ends)
        self.one.feed(self.one.shard.length_heard(told, self.one.now))

    def merged(self, fragment: int, number: int, *, left_out: str = "", states: str = "") -> None:
        """The Merge that the driver was given is done."""
        without, name = left_out.split(",") if left_out else (), digest(fragment, number)
        found, one = MergeFindings(left_out=dict.fromkeys(without, "not finite")), self.one
        one.feed(one.shard.merged(fragment, name, "object", one.now, found, states))

    def part(self, file: str, of: str) -> None:
        self.one.feed(self.one.shard.part_written(file, of))

    def slow_disk(self) -> None:
        self.one.durable = False

    def flush(self) -> None:
        self.one.flush()

    def slow_merges(self) -> None:
        self.one.skip_merges = True

    def lingering(self) -> None:
        self.one.lingering = True

    def clear(self) -> None:
        self.one.effects.clear()

    # ------------------------------------------------------------ what is seen, once

    def ends(self, *codes: str) -> None:
        found = [pb.Code.Name(end.code) for end in self.taken_ends()]
        assert found == [*codes]

    def taken_ends(self) -> list[pb.End]:
        self.last = self.one.ends()
        return self.last

    def ended(self, slot: str, code: str) -> None:
        """The one session that has ended since."""
        (end,) = self.one.take(effects.EndSession)
        self.last = [end.end]
        assert (end.session, pb.Code.Name(end.end.code)) == (self.s[slot], code)

    def calls(self, fragment: int, *slots: str) -> None:
        calls = self.one.sent("call")
        found = {session for session, call in calls if call.slice == fragment}
        assert found == {self.s[slot] for slot in slots}

    def sent(self, kind: str, *slots: str) -> None:
        """Who was sent this; `messages` has what it was."""
        sent = self.one.sent(kind)
        self.messages = [message for _, message in sent]
        assert [session for session, _ in sent] == [self.s[slot] for slot in slots]

    def order(self, slot: str, *kinds: str) -> None:
        """The messages of these kinds, as the newest session of a slot was sent them."""
        sent = [each for each in self.one.take(effects.Send) if each.session == self.s[slot]]
        found = [str(each.message.WhichOneof("kind")) for each in sent]
        assert [each for each in found if each in kinds] == [*kinds]

    def merges(self, *slots: str) -> None:
        """Those that have begun, each as `a-0,a-1`."""
        found = self.merging = self.one.take(effects.MergeOffers)
        assert [",".join(part.slot for part in each.participants) for each in found] == [
            each.replace("-none", "") for each in slots
        ]

    def asked(self, *wanted: str) -> None:
        """Versions that learners were asked for, each as `slot:slice:number`."""
        sent = [(session, message.version) for session, message in self.one.sent("send_held")]
        named = [f"{self.slot(s)}:{held.slice}:{held.version.number}" for s, held in sent]
        assert named == [*wanted]

    def publishes(self, *wanted: str) -> None:
        """Each as `slot:slice`."""
        found = self.one.take(effects.PublishHead)
        assert [f"{self.slot(each.session)}:{each.slice}" for each in found] == [*wanted]

    def given(self, *slots: str) -> None:
        """Who was given versions."""
        found = {each.session for each in self.one.take(effects.PublishHead)}
        assert found == {self.s[slot] for slot in slots}

    def drops(self, *wanted: str) -> None:
        found = self.one.take(effects.Drop)
        assert [f"{each.slot}:{each.slice}:{each.capture}" for each in found] == [*wanted]

    def stages(self, *wanted: str) -> None:
        found = self.one.take(effects.Stage)
        assert [f"{each.slot}:{each.slice}:{each.capture}" for each in found] == [*wanted]

    def tape(self, event: str, count: int) -> None:
        """So many lines of this event; `lines` has them."""
        found = [each.record for each in self.one.take(effects.TapeLine)]
        self.lines = [record for record in found if record["event"] == event]
        assert len(self.lines) == count

    def effect(self, kind: str, count: int) -> None:
        """So many effects of this kind; `found` has them."""
        self.found = self.one.take(getattr(effects, kind))
        assert len(self.found) == count

    # ------------------------------------------------------------ longer stories

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

    def merge_until(self, merges: int, *tokens: int) -> None:
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

    def last_rounds(self, *slots: str, reach: bool = True, **sync: Any) -> None:
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
        self.last_rounds(*slots)
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

    def waiting(self, start_seconds: int = 0, **learners: int) -> None:
        """Version 0 is durable, and one of the job's learners is there."""
        self.process(expected=listed(start_seconds, **learners))
        self.join("a-0")
        self.model("a-0")
        self.seed("a-0")

    def follows(self, **fields: Any) -> None:
        """The next instance of a-0 is welcomed."""
        self.one.sent("welcome")
        self.join("a-0", "new", **{"starting": True, **fields})
        self.sent("welcome", "a-0")

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
