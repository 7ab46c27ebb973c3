"""Rules 13, 19 and 22, from the values themselves: nothing lost, repeated or rolled back."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.model.effects import Effect, Send, StoreHeld
from atoll_syncer.model.log import Committed, Entry, Seeded
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.symbols import Key, Value, Work
from sim.watch import Watcher
from sim.world import World

Unit = tuple[str, int, int, int, int]
WAIT_SECONDS = 30.0  # that a shard waits for learners which may hold more than those who came
OF_STORE = "of the store"  # in the reason of a version that its shard had itself


class MergedOnceChecker(Watcher):
    """Rule 13: no unit of work twice in a lineage, one offer per slot and commit, true names."""

    rule = "13"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.units: dict[Key, set[Unit]] = {}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if not isinstance(entry, Committed) or entry.recovered:
            return
        key = shard, entry.slice
        works = self.world.values[entry.digest].merged if entry.participants else ()
        names = [(p.slot, p.incarnation, p.capture) for p in entry.participants]
        held = [(work.slot, work.incarnation, work.steps) for work in works]
        self.require(names == held, f"{key} v{entry.number} says {names} and holds {held}")
        self.require(len({name[0] for name in names}) == len(names), f"one slot twice: {names}")
        units = self.units.setdefault(key, set())
        for work in works:
            twice = units.intersection(work.units())
            self.require(not twice, f"{key} v{entry.number} merges again {sorted(twice)[:3]}")
            units.update(work.units())

    def store_lost(self, shard: int) -> None:
        self.units = {key: units for key, units in self.units.items() if key[0] != shard}

    def adopted(self, learner: LearnerProcess, key: Key, publish: pb.Publish, value: Value) -> None:
        newest = newest_work(value, learner.slot)
        said = (publish.merged.incarnation, publish.merged.capture)
        truth = (newest.incarnation, newest.steps) if newest is not None else (0, 0)
        self.require(said == truth, f"{learner.name} hears {said} of {key}, merged was {truth}")


Base = tuple[int, str]  # number and digest of a version


def base_of(version: pb.Version) -> Base:
    return version.number, version.digest


class LawChecker(Watcher):
    """Rule 13's law: tokens trained = merged + overlap + late + pending, and merged is true."""

    rule = "13 (law)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.since: dict[tuple[str, Key], int] = {}  # t_m at the last adoption
        self.expected: dict[tuple[str, Key, int], tuple[int, int]] = {}  # merged, all
        self.offered: dict[tuple[str, Key, Base], list[int]] = {}  # steps on the base
        self.spans: dict[tuple[str, Key, int], tuple[Base, int, int]] = {}  # base, t_m from and to
        self.adopted_tokens: dict[tuple[str, Key], int] = {}

    def adopted(self, learner: LearnerProcess, key: Key, publish: pb.Publish, value: Value) -> None:
        now, tokens = learner.training.t_m, self.world.scenario.tokens_per_step
        begin = self.since.get((learner.name, key), 0)
        merged = {
            unit
            for version in value.lineage()
            for work in version.merged
            if (work.slot, work.incarnation) == (learner.slot, learner.incarnation)
            for unit in work.units()
            if begin < unit[-1] <= now
        }
        number = publish.version.version.number
        said = len(merged) * tokens, (now - begin) * tokens
        self.expected[learner.name, key, number] = said
        self.since[learner.name, key] = now
        before = learner.transport.values.bases.get(key)
        base = base_of(before.publish.version.version) if before is not None else (-1, "")
        self.spans[learner.name, key, number] = base, begin, now
        total = self.adopted_tokens.get((learner.name, key), 0)
        self.adopted_tokens[learner.name, key] = total + said[1]

    def recorded(self, learner: LearnerProcess, fields: dict[str, Any]) -> None:
        for record in fields.get("adopted", ()):
            key = record["shard"], record["slice"]
            merged, total = self.expected.pop((learner.name, key, record["version"]))
            counted = record["merged"] + record["overlap"] + record["late"]
            self.require(record["merged"] == merged, f"{learner.name}: {record}, merged {merged}")
            self.require(counted == total, f"{learner.name}: {record} of {total} tokens")
            base, begin, end = self.spans.pop((learner.name, key, record["version"]))
            offered = self.offered.pop((learner.name, key, base), [])
            if not merged:
                self._late(learner, record, end - begin, offered)
        if fields.get("event") == "end":
            for name, pending in fields["pending"].items():
                shard, _, fragment = name.partition("/")
                said = self.adopted_tokens.get((learner.name, (int(shard), int(fragment))), 0)
                known = pending + said
                # A boundary that is on its way to the transport is in neither.
                behind = learner.training.tokens - fields["tokens"]
                self.require(
                    known == learner.training.tokens - behind,
                    f"{learner.name} {name}: {said} + {pending} of {fields['tokens']}",
                )

    def _late(
        self, learner: LearnerProcess, record: dict[str, Any], steps: int, offered: list[int]
    ) -> None:
        """Late is what was offered in vain, overlap what was trained after it; else all is late."""
        late = max(offered, default=steps) * self.world.scenario.tokens_per_step
        self.require(record["late"] == late, f"{learner.name}: {record}, late were {late}")

    def handed_over(self, learner: LearnerProcess, key: Key, offer: pb.Offer) -> None:
        """Also one that dies with its session: what is trained from here on is overlap."""
        name = learner.name, key, (offer.base, offer.base_digest)
        self.offered.setdefault(name, []).append(offer.capture)

    def capture_lost(self, learner: LearnerProcess, key: Key, offer: pb.Offer) -> None:
        offered = self.offered.get((learner.name, key, (offer.base, offer.base_digest)), [])
        if offer.capture in offered:
            offered.remove(offer.capture)


class DurableChecker(Watcher):
    """Rule 19: durable before it is adopted, each on the one before, its objects there.

    A learner that is away while its shard takes a lost version back from another one loses what it
    alone has held (rule 22).
    """

    rule = "19"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.versions: dict[tuple[int, int, int], set[str]] = {}  # all durable ever
        self.heads: dict[Key, tuple[int, str]] = {}
        self.objects: dict[Key, list[str]] = {}  # the newest two
        self.away: dict[Key, set[str]] = {}  # slots, when a held version was taken back

    def store_lost(self, shard: int) -> None:
        self.heads = {key: head for key, head in self.heads.items() if key[0] != shard}
        self.objects = {key: names for key, names in self.objects.items() if key[0] != shard}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Seeded):
            for fragment, (digest, name) in enumerate(
                zip(entry.digests, entry.objects, strict=True)
            ):
                self._version((shard, fragment), 0, digest, name)
        elif isinstance(entry, Committed):
            key = shard, entry.slice
            if entry.recovered:
                self._version(key, entry.number, entry.digest, entry.object)
                return
            number, digest = self.heads[key]
            value = self.world.values[entry.digest]
            base = value.parent.digest if value.merged and value.parent else value.digest
            follows = entry.number == number + 1 and entry.base == number
            self.require(follows, f"{key}: v{entry.number} on {entry.base} after v{number}")
            if entry.participants:
                self.require(base == digest, f"{key}: v{entry.number} is not made from v{number}")
            self._version(key, entry.number, entry.digest, entry.object)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StoreHeld) and shard.shard is not None:
                state = shard.shard.state
                here = {each.slot for each in state.sessions.open.values() if each.welcomed}
                self.away[state.number, effect.slice] = {*self.world.run_file.slots} - here

    def object_deleted(self, shard: int, name: str) -> None:
        for key, names in self.objects.items():
            self.require(name not in names, f"an object of {key} is collected, of {names}")

    def adopted(self, learner: LearnerProcess, key: Key, publish: pb.Publish, value: Value) -> None:
        version = publish.version.version
        durable = self.versions.get((*key, version.number), set())
        self.require(version.digest == value.digest, f"{key}: another value than its name says")
        known = value.digest in durable
        self.require(known, f"{learner.name} adopts {key} v{version.number}, which is not durable")
        before = learner.bases.get(key)
        unheard = learner.observer and self.world.loses_a_store  # nobody asks observers
        if before is not None and not unheard:
            lineage = {each.digest for each in value.lineage()}
            away = self.away.get(key, set())
            kept = before.digest in lineage or learner.slot in away
            self.require(kept, f"{learner.name}: {key} is rolled back")
            if before.digest not in lineage:
                away.discard(learner.slot)  # once for each time

    def _version(self, key: Key, number: int, digest: str, name: str) -> None:
        there = name in self.world.stores[key[0]].data
        self.require(there, f"{key}: the log names an object that is not there")
        self.versions.setdefault((*key, number), set()).add(digest)
        self.heads[key] = number, digest
        self.objects[key] = [*self.objects.get(key, [])[-1:], name]


class LossChecker(Watcher):
    """Rule 22: a shard that lost committed data starts from no seed."""

    rule = "22"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.begun: set[int] = set()
        self.lost: set[int] = set()
        self.joins: dict[tuple[str, int], pb.Join] = {}  # process, session
        self.is_damaged = any(fault.kind == "damage" for fault in world.scenario.faults)
        self.digests: dict[Key, list[str]] = {}  # of all versions above 0, the newest last

    def store_lost(self, shard: int) -> None:
        self.lost.update({shard} & self.begun)

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            self.begun.add(shard)
        if isinstance(entry, Seeded):
            for fragment, digest in enumerate(entry.digests):
                self.digests[shard, fragment] = [digest]
        if isinstance(entry, Committed):
            if entry.recovered:
                self._recovered(shard, entry)
            self.digests.setdefault((shard, entry.slice), []).append(entry.digest)
        if isinstance(entry, Seeded):
            lost = shard in self.lost and self._is_known(shard)
            self.require(not lost, f"shard {shard} takes a seed for what it lost")

    def shard_joined(self, shard: ShardProcess, session: int, join: pb.Join) -> None:
        self.joins[shard.name, session] = join

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        """Who is asked holds as much as anybody who has joined (but for damaged transfers)."""
        for effect in () if self.is_damaged else effects:
            if isinstance(effect, Send) and effect.message.HasField("send_held"):
                wanted = effect.message.send_held.version
                for session, peer in shard.peers.items():
                    if peer.incarnation > 0 and not peer.ended:
                        held = self._held(shard, session, wanted.slice)
                        fits = held <= wanted.version.number
                        self.require(fits, f"{shard.name} asks for {wanted}, {held} is held")
                self._waits_for_all(shard, wanted)

    def _waits_for_all(self, shard: ShardProcess, wanted: pb.SliceVersion) -> None:
        """Who lives and could have joined by now holds no higher version."""
        if self.world.sim.now - shard.began_at >= WAIT_SECONDS:
            return
        for learner in self.world.learners.values():
            held = learner.exchange.state.slices[shard.number, wanted.slice].held
            if held is None or not learner.alive or held.run != wanted.version.run:
                continue
            fits = held.number <= wanted.version.number
            self.require(fits, f"{shard.name} asks for {wanted}, {learner.name} has {held.number}")

    def _held(self, shard: ShardProcess, session: int, fragment: int) -> int:
        """What a session's Join named of this run."""
        assert shard.shard is not None
        join, run = self.joins[shard.name, session], shard.shard.state.history.run
        numbers = [
            each.version.number
            for each in join.held
            if each.slice == fragment and each.version.run == run
        ]
        return max(numbers, default=0)

    def run_ended(self) -> None:
        """A job may fail only when no living learner holds what is lost."""
        for process in self.world.shards:
            state = process.shard.state if process.alive and process.shard is not None else None
            if state is None or not state.failed or state.recovery is None:
                continue
            failures = state.failures
            for learner in self.world.learners.values():
                keys = {(process.number, fragment) for fragment in state.recovery.gone}
                holds = keys <= learner.bases.keys() and not failures.are_too_many(learner.slot)
                self.require(not (holds and learner.alive), f"{learner.name} holds what is lost")

    def _is_known(self, shard: int) -> bool:
        """Whether the registrar's mark or a living learner's version tells of the loss."""
        if shard != REGISTRAR_SHARD and REGISTRAR_SHARD not in self.lost:
            return True
        held = [p.bases.items() for p in self.world.learners.values() if p.alive]
        return any(key[0] == shard and value.parent for bases in held for key, value in bases)

    def _recovered(self, shard: int, entry: Committed) -> None:
        """The highest version that a living learner which could be heard still has."""
        key = shard, entry.slice
        held = {
            learner.bases[key].digest
            for learner in self.world.all_learners
            if learner.exchange.state.incarnation > 0 and key in learner.bases
        }
        if OF_STORE in entry.reason:
            here = {each.name for each in self.world.learners.values() if each.alive}
            holds = [x.name for x in self.world.all_learners if x.name in here and key in x.bases]
            self.require(not holds, f"{key} comes from the store, and {holds} hold a version")
            before = self.digests[key][-2]
            self.require(entry.digest == before, f"{key} is not the version before the lost one")
            return
        self.require(entry.digest in held, f"{key} is recovered as a value that no learner held")
        for learner in self.world.learners.values():
            each = learner.exchange.state.slices[key].held
            fits = each is None or not learner.alive or each.epoch < entry.epoch
            self.require(fits, f"{key} is recovered in epoch {entry.epoch}, and {each} is held")
        self.require(not entry.participants, f"{key} is recovered with participants")


class NumberChecker(Watcher):
    """Rule 21: no learner ever goes back in number; sideways only into a later term."""

    rule = "21"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.held: dict[tuple[str, Key], tuple[int, int]] = {}

    def adopted(self, learner: LearnerProcess, key: Key, publish: pb.Publish, value: Value) -> None:
        version = publish.version.version
        before = self.held.get((learner.name, key), (-1, 0))
        after = version.number, version.epoch
        self.held[learner.name, key] = after
        self.require(after[0] >= before[0], f"{learner.name}: {key} goes from {before} to {after}")
        self.require(after > before, f"{learner.name}: {key} goes from {before} to {after}")


def newest_work(value: Value, slot: str) -> Work | None:
    """A slot's last work in a lineage."""
    for version in value.lineage():
        for work in version.merged:
            if work.slot == slot:
                return work
    return None
