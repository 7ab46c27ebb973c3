"""Rule 41: who is not on the list, or shows a certificate that is over, is shut out in time."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Expected
from atoll_protos.names import split_slot
from atoll_syncer.model.effects import Effect, EndSession, MergeOffers, Send, Stage
from atoll_syncer.model.roster import Certificate
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World

SLACK_SECONDS = 0.6  # the rules look four times a second


class ShutOutChecker(Watcher):
    """Looks at what each process has read of the list, and at whom it serves and merges."""

    rule = "41"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.lists: dict[str, Expected] = {}  # process: the last that it has read
        self.left: dict[tuple[str, str], float] = {}  # process, slot: read without it since
        self.raised: dict[tuple[str, str], float] = {}  # process, region: its generation, at
        self.lost: dict[tuple[str, str], float] = {}  # process, slot: its machine, at
        self.shown: dict[tuple[str, int], tuple[str, Certificate]] = {}  # process, session
        self.welcomed: dict[str, set[int]] = {}  # process: sessions
        self.staged: dict[tuple[str, str, int], float] = {}  # process, slot, slice

    def list_heard(self, shard: ShardProcess, expected: Expected) -> None:
        before = self.lists.get(shard.name, self.world.scenario.expected)
        for slot in before.every - expected.every:
            self.left[shard.name, slot] = self.world.sim.now
        for slot in expected.every:
            self.left.pop((shard.name, slot), None)
        for each in expected.limits:
            if each.generation > before.limit(each.region).generation:
                self.raised[shard.name, each.region] = self.world.sim.now
        for machine, slots in before.given.items():
            for slot in slots - expected.given.get(machine, frozenset()):
                self.lost[shard.name, slot] = self.world.sim.now
        self.lists[shard.name] = expected

    def certificate_shown(
        self, shard: ShardProcess, session: int, slot: str, certificate: Certificate
    ) -> None:
        self.shown[shard.name, session] = slot, certificate

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if not self.world.scenario.lists:
            return
        now, name = self.world.sim.now, shard.name
        served = {each for each in self.welcomed.get(name, ()) if each in shard.peers}
        self.welcomed[name] = served
        for effect in effects:
            match effect:
                case Send(session, message) if message.HasField("welcome"):
                    served.add(session)
                case EndSession(session, end):
                    served.discard(session)
                    self._ends(shard, session, end)
                case Stage(slot=slot, slice=fragment):
                    self.staged[name, slot, fragment] = now
                case MergeOffers():
                    self._merges(shard, effect)
        for session in served:
            self._serves(shard, *self.shown[name, session])

    def _ends(self, shard: ShardProcess, session: int, end: pb.End) -> None:
        """Nobody is shut out before the grace of the list that this process has read."""
        if end.code == pb.UNKNOWN_SLOT:
            slot, _ = self.shown[shard.name, session]
            since = self.left.get((shard.name, slot))
            over = self.world.sim.now - (0.0 if since is None else since)
            early = since is None or over < self.world.scenario.grace_seconds
            self.require(not early, f"{shard.name} shuts {slot} out after {over:.2f} s")

    def _serves(self, shard: ShardProcess, slot: str, certificate: Certificate) -> None:
        if not slot:
            return
        self._stays(shard, slot, certificate.until, "an expired certificate")
        if (out := self._out_at(shard, slot)) is not None:
            self._stays(shard, slot, out, "no place on the list")
        raised = self.raised.get((shard.name, certificate.region))
        wanted = self.lists.get(shard.name, self.world.scenario.expected)
        if (
            raised is not None
            and certificate.generation < wanted.limit(certificate.region).generation
        ):
            self._stays(shard, slot, raised, "a revoked certificate")
        given = wanted.given.get(certificate.machine, frozenset())
        if certificate.machine and slot not in given:
            since = self.lost.get((shard.name, slot), 0.0)
            self._stays(shard, slot, since, f"machine {certificate.machine}, which may not be it")

    def _stays(self, shard: ShardProcess, slot: str, over: float, why: str) -> None:
        late = self.world.sim.now - max(over, shard.woke_at)
        self.require(late <= SLACK_SECONDS, f"{shard.name} serves {slot} with {why}: {late:.2f} s")

    def _merges(self, shard: ShardProcess, merge: MergeOffers) -> None:
        for part in merge.participants:
            if (out := self._out_at(shard, part.slot)) is not None:
                self._stays(shard, part.slot, out, "an offer, and no place on the list")
            at = self.staged.get((shard.name, part.slot, merge.slice), 0.0)
            raised = self.raised.get((shard.name, split_slot(part.slot)[0]), 0.0)
            over = max(raised, self.lost.get((shard.name, part.slot), 0.0))
            self.require(at >= over, f"{shard.name} merges {part}, of a revoked certificate")

    def _out_at(self, shard: ShardProcess, slot: str) -> float | None:
        """When its grace was over; None while it is on the list."""
        since = self.left.get((shard.name, slot))
        return None if since is None else since + self.world.scenario.grace_seconds
