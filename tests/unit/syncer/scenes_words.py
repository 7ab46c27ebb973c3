"""Plays scenes: texts in which each word is something that happens to a shard, or that is seen.

A file of scenes has `== name` before each scene, then commands, one a line or several with `;`
between them. A command is a method with its arguments: `join a-0 instance=new`. Slots stand
for their newest sessions, `a-0'` for the one before. A value is Python, or else a text. `is` takes
an expression that must hold, and `let` a statement, with the names of `Words.names`.
"""

import re
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.job.run_file import NOBODY, Expected, Fragments, Limit, ListedMachine, Region
from atoll_protos.job.schedule import Length
from atoll_protos.means import MovingMean
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.model import effects, log
from atoll_syncer.model.history import History
from atoll_syncer.model.roster import CallCredit, Certificate, MergeFindings, Timings
from atoll_syncer.rules import offers as records
from atoll_syncer.rules import seeding
from atoll_syncer.rules.runs import of_another_job
from atoll_syncer.rules.status import status, why_no_export
from unit.syncer import recovery_side, shard_side
from unit.syncer.shard_side import KEY, RUN, Side, digest, side, version

FIELD = re.compile(r"\w+=(?!=)")


def listed(start_seconds: int = 0, /, **learners: int) -> Expected:
    regions = tuple(Region(name=name, learners=count) for name, count in learners.items())
    return Expected(regions=regions, start_seconds=start_seconds)


def limited(tokens: int) -> Expected:
    """So many tokens a step are the most in region b."""
    return Expected(limits=(Limit(region="b", tokens_per_step=tokens),))


def revoked(generation: int) -> Expected:
    limits = (Limit(region="b", generation=generation),)
    return Expected(regions=listed(a=2, b=2).regions, limits=limits)


def given(**slots: str) -> Expected:
    """Regions a and b, and these machines."""
    machines = tuple(
        ListedMachine(name=name, slots=(*each.split(","),)) for name, each in slots.items()
    )
    return Expected(regions=listed(a=2, b=2).regions, machines=machines)


def taken(slot: str, incarnation: int = 1, instance: str = "", uid: str = "uid") -> log.Taken:
    return log.Taken(
        slot=slot, incarnation=incarnation, uid=uid, instance=instance or f"{slot}-process"
    )


def lineage(slot: str, **fields: Any) -> pb.SlotMerged:
    return pb.SlotMerged(slot=slot, **fields)


class Words:
    """One scene: the shard `one`, the sessions of its slots, the heads of transfers under way."""

    def __init__(self) -> None:
        self.one: Side
        self.s: dict[str, int] = {}
        self.head: dict[str, pb.Transfer] = {}
        self.names: dict[str, Any] = {
            **{"pb": pb, "log": log, "Expected": Expected, "NOBODY": NOBODY, "Length": Length},
            **{"Fragments": Fragments, "Wire": Wire, "History": History, "Limit": Limit},
            **{"Certificate": Certificate, "seeding": seeding, "KEY": KEY, "RUN": RUN, "s": self.s},
            **{"digest": digest, "version": version, "listed": listed, "revoked": revoked},
            "given": given,
            "limited": limited,
            "records": records,
            **{"taken": taken, "lineage": lineage, "play": self, "shard_side": shard_side},
            **{"ExitCode": ExitCode, "CallCredit": CallCredit, "MovingMean": MovingMean},
            **{"Timings": Timings, "status": status, "of_another_job": of_another_job},
            "why_no_export": why_no_export,
        }

    def play(self, text: str) -> None:
        for line in text.splitlines():
            for command in line.partition("# ")[0].split(";"):
                word, _, rest = command.strip().partition(" ")
                if word:
                    self.does(word, rest.strip())

    def does(self, word: str, rest: str) -> None:
        if word == "is":
            found = eval(rest, self.scope())
            assert not isinstance(found, tuple), f"{rest} always holds"
            assert found, rest
        elif word == "let":
            exec(rest, self.names | self.scope(), self.names)
        else:
            words = [each for each in rest.split() if not FIELD.match(each)]
            fields = dict(each.split("=", 1) for each in rest.split() if FIELD.match(each))
            args = [self.value(each) for each in words]
            getattr(self, word)(*args, **{key: self.value(each) for key, each in fields.items()})

    def scope(self) -> dict[str, Any]:
        """What a scene may look at, as it is now."""
        one = getattr(self, "one", None)
        if one is None:
            return self.names
        state, shown = one.state, status(one.state, one.now)
        seen = {"one": one, "state": state, "history": state.history, "shown": shown}
        heads = {n: head.number for n, head in sorted(state.history.heads.items())}
        here = {"heads": heads, "open": state.rounds.open, "clock": state.clock, "now": one.now}
        return {**self.names, **seen, **here, "slots": {each.slot: each for each in shown.slots}}

    def value(self, text: str) -> Any:
        try:
            return eval(text, self.scope())
        except (NameError, SyntaxError):
            return text

    def slot(self, session: int) -> str:
        return next(slot for slot, number in self.s.items() if number == session)

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

    def process(self, *, started: bool = True, **fields: Any) -> None:
        """A process of its own, with `shards` and what `side` takes."""
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
        self.one = recovery_side.empty_shard(*alive, **sync)
        self.s.clear()

    def join(self, slot: str, instance: str = "", *, name: str = "", **fields: Any) -> None:
        slot = "" if slot == "-" else slot
        self.note(name or slot or "eye", self.one.join(slot, instance, **fields))

    def note(self, name: str, session: int) -> None:
        if name in self.s:
            self.s[f"{name}'"] = self.s[name]
        self.s[name] = session

    def holder(self, slot: str, *numbers: int, **fields: Any) -> None:
        """A learner joins with these versions."""
        self.note(slot, recovery_side.held_by(self.one, slot, *numbers, **fields))

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

    def offer(self, slot: str, fragment: int, steps: int, **fields: Any) -> None:
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

    def listing(self, expected: Expected) -> None:
        self.one.feed(self.one.shard.expected_heard(expected, self.one.now))

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
        self.names["last"] = self.one.ends()
        return self.names["last"]  # type: ignore[no-any-return]

    def ended(self, slot: str, code: str) -> None:
        """The one session that has ended since."""
        (end,) = self.one.take(effects.EndSession)
        self.names["last"] = [end.end]
        assert (end.session, pb.Code.Name(end.end.code)) == (self.s[slot], code)

    def calls(self, fragment: int, *slots: str) -> None:
        calls = self.one.sent("call")
        found = {session for session, call in calls if call.slice == fragment}
        assert found == {self.s[slot] for slot in slots}

    def sent(self, kind: str, *slots: str) -> None:
        """Who was sent this; `messages` has what it was."""
        sent = self.one.sent(kind)
        self.names["messages"] = [message for _, message in sent]
        assert [session for session, _ in sent] == [self.s[slot] for slot in slots]

    def order(self, slot: str, *kinds: str) -> None:
        """The messages of these kinds, as the newest session of a slot was sent them."""
        sent = [each for each in self.one.take(effects.Send) if each.session == self.s[slot]]
        found = [str(each.message.WhichOneof("kind")) for each in sent]
        assert [each for each in found if each in kinds] == [*kinds]

    def merges(self, *slots: str) -> None:
        """Those that have begun, each as `a-0,a-1`."""
        found = self.names["merging"] = self.one.take(effects.MergeOffers)
        assert [",".join(part.slot for part in each.participants) for each in found] == [
            each.replace("-none", "") for each in slots
        ]

    def asked(self, *wanted: str) -> None:
        """Versions that learners were asked for, each as `slot:slice:number`."""
        found = recovery_side.asked(self.one)
        assert [f"{self.slot(s)}:{n}:{number}" for s, n, number in found] == [*wanted]

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
        self.names["lines"] = [record for record in found if record["event"] == event]
        assert len(self.names["lines"]) == count

    def effect(self, kind: str, count: int) -> None:
        """So many effects of this kind; `found` has them."""
        self.names["found"] = self.one.take(getattr(effects, kind))
        assert len(self.names["found"]) == count
