"""What shards send is checked here before any other rule uses it (rule 38).

`atoll_protos.bounds` has the table of what each field keeps to; here is what depends on the state.
Each function returns an objection in words, which ends the session; empty when the message can be
true. What an honest shard can say always passes: it may know a longer job, a later epoch and a
higher tick than this learner has heard of.
"""

from collections.abc import Sequence

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import bounds
from atoll_protos.bounds import AHEAD_MAX, above, first
from atoll_protos.errors import printable
from atoll_protos.job.layout import TENSORS_MAX
from atoll_protos.names import DATA_STATE_BYTES_MAX, LANES_MAX
from atoll_worker.rules.learner_state import Connection, LearnerState


def of_message(state: LearnerState, shard: int, message: pb.ToLearner) -> str:
    """Kinds that are not known are ignored: they may be newer."""
    return bounds.objection(message) or _of_kind(state, shard, message)


def _of_kind(state: LearnerState, shard: int, message: pb.ToLearner) -> str:
    match message.WhichOneof("kind"):
        case "welcome":
            return _of_welcome(state, shard, message.welcome)
        case "end":
            return above("tensors", len(message.end.model.tensors), TENSORS_MAX)
        case "call":
            call = message.call
            return _of_slice(state, shard, call.slice) or _of_ticks(
                state, base=call.base, due=call.due
            )
        case "tick":
            return _of_ticks(state, tick=message.tick.tick) or _of_length(message.tick.length)
        case "send_held":
            return _of_version(state, shard, message.send_held.version, state.run)
        case "final":
            return _of_final(state, shard, message.final)
    return ""


def of_publish(state: LearnerState, shard: int, publish: pb.Publish) -> str:
    run = state.run or publish.version.version.run
    return bounds.objection(publish) or _of_version(state, shard, publish.version, run)


def _of_welcome(state: LearnerState, shard: int, welcome: pb.Welcome) -> str:
    known = state.shards[shard]
    if known.connection is not Connection.JOINING:
        return "a second Welcome"
    if not welcome.run:
        return "a Welcome without a run"
    own = state.incarnation or welcome.incarnation
    if not state.configure.observer and welcome.incarnation != own:
        return f"incarnation {welcome.incarnation}, not {own}"
    return (
        above("incarnation", welcome.incarnation, state.incarnation + AHEAD_MAX)
        or above("epoch", welcome.epoch, known.epoch + AHEAD_MAX)
        or _of_ticks(state, tick=welcome.tick)
        or above("lanes", welcome.lanes, LANES_MAX)
        or above("data_state", len(welcome.data_state), DATA_STATE_BYTES_MAX)
        or _of_length(welcome.length)
        or _of_versions(state, shard, welcome.newest, welcome.run, welcome.epoch)
    )


def _of_versions(
    state: LearnerState, shard: int, versions: Sequence[pb.SliceVersion], run: str, epoch: int = 0
) -> str:
    """Of each slice of the shard at most once: of one that was lost there is none (rule 22)."""
    slices = {version.slice for version in versions}
    if len(slices) != len(versions):
        return "a slice is named twice"
    if slices - {part.fragment for part in state.of(shard)}:
        return f"versions of slices {sorted(slices)[:8]}, which are not those of the shard"
    return first(_of_version(state, shard, version, run, epoch) for version in versions)


def _of_final(state: LearnerState, shard: int, final: pb.Final) -> str:
    if len(final.versions) not in (0, len(state.of(shard))):
        return f"it names {len(final.versions)} of its {len(state.of(shard))} final versions"
    return _of_versions(state, shard, final.versions, state.run)


def _of_version(
    state: LearnerState, shard: int, named: pb.SliceVersion, run: str, epoch: int = 0
) -> str:
    version, known = named.version, max(epoch, state.shards[shard].epoch)
    if version.run != run:
        return f"a version of run {printable(version.run)}, not {run}"
    return (
        _of_slice(state, shard, named.slice)
        or _of_ticks(state, version=version.number)
        or above("epoch", version.epoch, known + AHEAD_MAX)
    )


def _of_slice(state: LearnerState, shard: int, fragment: int) -> str:
    return "" if (shard, fragment) in state.slices else f"slice {fragment} is unknown"


def _of_length(length: pb.Length) -> str:
    return "an end at 0 ticks" if 0 in length.ends else ""


def _of_ticks(state: LearnerState, **ticks: int) -> str:
    """Ticks and numbers of versions; a shard makes none above it (rule 38)."""
    most = state.length.ticks_max
    return first(above(name, tick, most) for name, tick in ticks.items())
