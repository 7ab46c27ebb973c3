"""What checkers may watch, and what they say when a rule is broken."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Expected
from atoll_protos.job.schedule import Length
from atoll_syncer.model.effects import Effect, MergeOffers
from atoll_syncer.model.log import Entry
from atoll_syncer.model.roster import Certificate
from sim.symbols import Difference, Key, Value

if TYPE_CHECKING:
    from sim.channel import Lane
    from sim.learner_process import LearnerProcess
    from sim.memory_store import MemoryStore
    from sim.rank import Part, Rank
    from sim.shard_process import ShardProcess
    from sim.world import World


class ViolationError(AssertionError):
    """A rule of docs/protocol.md did not hold."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"rule {rule}: {what}")
        self.rule = rule


class Watcher:
    """Hears everything that happens; subclasses look at what concerns their rule.

    Facts come from the edges (what is in a store, what a learner holds, what was sent), never
    from the protocol's own bookkeeping.
    """

    rule = ""

    def __init__(self, world: "World") -> None:
        self.world = world

    def require(self, holds: bool, what: str) -> None:
        """Say that the rule is broken."""
        if not holds:
            error = ViolationError(self.rule, f"at {self.world.sim.now:.3f} s: {what}")
            self.world.sim.fails(error)  # production code may catch what is raised here
            raise error

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        """A shard's store has this entry, whichever process wrote it."""

    def object_deleted(self, shard: int, name: str) -> None:
        """An object was collected."""

    def store_lost(self, shard: int) -> None:
        """A shard's store is empty from now on."""

    def object_lost(self, shard: int, name: str) -> None:
        """An object that an entry names is gone from the store."""

    def part_taken(self, shard: int, part: "MemoryStore") -> None:
        """A shard has taken its part of a checkpoint."""

    def checkpoint_whole(self, step: str, parts: Mapping[str, "MemoryStore"]) -> None:
        """Shard 0 says that all parts are there; `parts` are by STEP/SHARD."""

    def shard_joined(self, shard: "ShardProcess", session: int, join: pb.Join) -> None:
        """A Join arrives."""

    def list_heard(self, shard: "ShardProcess", expected: Expected) -> None:
        """A shard's process has read another list of the job's learners."""

    def certificate_shown(
        self, shard: "ShardProcess", session: int, slot: str, certificate: Certificate
    ) -> None:
        """What the peer of a session that begins has shown."""

    def shard_message(self, shard: "ShardProcess", session: int, message: pb.ToShard) -> None:
        """A control message arrives."""

    def shard_did(self, shard: "ShardProcess", effects: list[Effect]) -> None:
        """The rules of a shard have answered an input."""

    def offer_began(self, shard: "ShardProcess", session: int, transfer: pb.Transfer) -> None:
        """An offer's head arrives; `offer_taken` follows if it is accepted."""

    def offer_accepted(self, shard: "ShardProcess", session: int, transfer: pb.Transfer) -> None:
        """The rules of the shard let it come."""

    def length_heard(self, shard: "ShardProcess", length: Length) -> None:
        """A shard reads its file, or another shard's Hello or the answer to it."""

    def slice_read(self, shard: "ShardProcess", fragment: int) -> None:
        """A process of a shard has looked for the newest version of a slice in its store."""

    def merging(
        self, shard: "ShardProcess", merge: MergeOffers, offers: tuple[Difference | None, ...]
    ) -> None:
        """A merge begins with these payloads; None: that offer is not staged."""

    def arrived(self, whole: bool) -> None:
        """Values have come to a process; whether all bytes say the same, each in its place."""

    def frame_sent(self, lane: "Lane", side: int, frame: bytes) -> None:
        """One of several lanes has a frame to send: the learner (side 0) or the shard (1)."""

    def frame_arrived(self, lane: "Lane", frame: bytes) -> None:
        """A frame of one of several lanes is here, at the learner."""

    def lane_ended(self, lane: "Lane") -> None:
        """One of several lanes is over at the shard, which knows it."""

    def exported(self, shard: int, values: Mapping[int, Value]) -> None:
        """A shard writes its part of the export: its final slices."""

    def owner_named(self, slot: str, uid: str, word: int) -> None:
        """The operator calls SetOwner; `word` is the number that it read in Status."""

    def learner_joins(self, learner: "LearnerProcess", shard: int, join: pb.Join) -> None:
        """A learner sends its Join."""

    def handed_over(self, learner: "LearnerProcess", key: Key, offer: pb.Offer) -> None:
        """A learner offers a capture; the offer may die with its session before it leaves."""

    def learner_bytes(self, learner: "LearnerProcess", shard: int) -> None:
        """Bytes of a value have come."""

    def capture_lost(self, learner: "LearnerProcess", key: Key, offer: pb.Offer) -> None:
        """The capture of that offer was overwritten before it was read."""

    def learner_message(self, learner: "LearnerProcess", shard: int, message: pb.ToLearner) -> None:
        """A control message arrives."""

    def commanded(self, learner: "LearnerProcess", command: Any) -> None:
        """The training process carries out a command."""

    def training_told(self, learner: "LearnerProcess", command: Any) -> None:
        """The transport process sends a command to the training process."""

    def training_said(self, learner: "LearnerProcess", message: Any) -> None:
        """The transport process hears the training process."""

    def stepped(self, learner: "LearnerProcess") -> None:
        """A learner has finished a step."""

    def adopted(
        self, learner: "LearnerProcess", key: Key, publish: pb.Publish, value: Value
    ) -> None:
        """A learner has taken a value as its own."""

    def recorded(self, learner: "LearnerProcess", fields: dict[str, Any]) -> None:
        """A line of a learner's telemetry."""

    def learner_ended(self, learner: "LearnerProcess") -> None:
        """A learner process is gone."""

    def rank_obeys(self, rank: "Rank", commands: list[Any]) -> None:
        """A rank of a learner carries out the commands of a boundary."""

    def rank_stepped(self, rank: "Rank") -> None:
        """A rank has finished an optimizer step."""

    def rank_counted(self, rank: "Rank") -> None:
        """A rank has heard what its head has counted until its last step."""

    def captured(self, rank: "Rank", key: Key, parts: "dict[int, Part]") -> None:
        """The head has what these ranks hold of a slice."""

    def rank_ended(self, rank: "Rank") -> None:
        """The process of a rank is gone."""

    def run_ended(self) -> None:
        """The simulation is over."""


HOOKS = tuple(
    name
    for name, member in vars(Watcher).items()
    if callable(member) and not name.startswith("_") and name != "require"
)


class Watchers:
    """Calls only those checkers that look at an event."""

    def __init__(self, watchers: "list[Watcher]") -> None:
        self.watchers = watchers
        self._hooks = {
            name: [
                getattr(each, name)
                for each in watchers
                if getattr(type(each), name) is not getattr(Watcher, name)
            ]
            for name in HOOKS
        }

    def tell(self, hook: str, *what: Any) -> None:
        """An event for all that look at it."""
        for each in self._hooks[hook]:
            each(*what)
