"""What shards say is checked here, field by field, before any other rule looks at it (rule 38).

Each function answers with an objection in words, which ends the session; empty when the message can
be true. What an honest shard can say always passes: it may know a longer job, a later epoch and a
higher tick than this learner has heard of.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import printable
from atoll_protos.job.layout import DIMENSIONS_MAX, TENSORS_MAX
from atoll_protos.job.schedule import ENDS_MAX
from atoll_protos.names import COUNTER_MAX, DATA_STATE_BYTES_MAX, LANES_MAX
from atoll_worker.rules.learner_state import Connection, LearnerState

AHEAD_MAX: Final = 1_000_000  # of epochs and incarnations, above what is known here
LETTERS_MAX: Final = 512  # of a name, a digest, an id
TEXT_LETTERS_MAX: Final = 10_000  # of a reason in words
LINEAGE_MAX: Final = 20_000  # slots


def of_message(state: LearnerState, shard: int, message: pb.ToLearner) -> str:
    """Kinds that are not known are ignored: they may be newer."""
    match message.WhichOneof("kind"):
        case "welcome":
            return _of_welcome(state, shard, message.welcome)
        case "end":
            return _of_end(message.end)
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
    merged = publish.merged
    slots = [each.slot for each in publish.lineage]
    return (
        _of_version(state, shard, publish.version, state.run or publish.version.version.run)
        or _of_counters(merged, "incarnation", "base", "capture")
        or _most("lineage", len(slots), LINEAGE_MAX)
        or _of_names(slots)
        or _first(
            _of_counters(each, "incarnation", "base", "capture", "cursor")
            or _of_counters(each.trained, "incarnation", "before", "now", "said", "parent")
            or _of_counters(each.trained.settled, "merged", "overlap", "late")
            or _of_counters(each.trained.settled_before, "merged", "overlap", "late")
            for each in publish.lineage
        )
    )


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
        _of_names((welcome.run, welcome.secret, welcome.proof))
        or _most("incarnation", welcome.incarnation, state.incarnation + AHEAD_MAX)
        or _most("epoch", welcome.epoch, known.epoch + AHEAD_MAX)
        or _of_counters(welcome, "session", "cursor")
        or _of_ticks(state, tick=welcome.tick)
        or _most("lanes", welcome.lanes, LANES_MAX)
        or _most("data_state", len(welcome.data_state), DATA_STATE_BYTES_MAX)
        or _of_length(welcome.length)
        or _of_versions(state, shard, welcome.newest, welcome.run, welcome.epoch)
    )


def _of_end(end: pb.End) -> str:
    tensors = end.model.tensors
    return (
        _of_text((end.reason, end.remedy), TEXT_LETTERS_MAX)
        or _most("tensors", len(tensors), TENSORS_MAX)
        or _first(
            _of_names((each.name, each.dtype, each.merge))
            or _most("dimensions", len(each.shape), DIMENSIONS_MAX)
            for each in tensors
        )
    )


def _of_versions(
    state: LearnerState, shard: int, versions: Sequence[pb.SliceVersion], run: str, epoch: int = 0
) -> str:
    """Of each slice of the shard at most once: of one that was lost there is none (rule 22)."""
    slices = {each.slice for each in versions}
    if len(slices) != len(versions):
        return "a slice is named twice"
    if slices - {each.fragment for each in state.of(shard)}:
        return f"versions of slices {sorted(slices)[:8]}, which are not those of the shard"
    return _first(_of_version(state, shard, each, run, epoch) for each in versions)


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
        or _of_names((version.run, version.digest))
        or _of_ticks(state, version=version.number)
        or _most("epoch", version.epoch, known + AHEAD_MAX)
    )


def _of_slice(state: LearnerState, shard: int, fragment: int) -> str:
    return "" if (shard, fragment) in state.slices else f"slice {fragment} is unknown"


def _of_length(length: pb.Length) -> str:
    return (
        _most("ends", len(length.ends), ENDS_MAX)
        or _most("end", max(length.ends, default=0), COUNTER_MAX)
        or _of_counters(length, "revision", "steps", "tokens")
        or ("an end at 0 ticks" if 0 in length.ends else "")
    )


def _of_ticks(state: LearnerState, **ticks: int) -> str:
    """Ticks and numbers of versions; a shard makes none above it (rule 38)."""
    most = state.length.ticks_max
    return _first(_most(name, tick, most) for name, tick in ticks.items())


def _of_counters(message: Any, *names: str) -> str:
    return _first(_most(name, getattr(message, name), COUNTER_MAX) for name in names)


def _of_names(names: Sequence[str]) -> str:
    """Names, digests and ids go into words and logs as they are."""
    if not all(map(str.isprintable, names)):
        return "a name with characters that cannot be printed"
    return _of_text(names, LETTERS_MAX)


def _of_text(texts: Sequence[str], most: int) -> str:
    return _most("letters of a text", max(map(len, texts), default=0), most)


def _most(name: str, value: int, most: int) -> str:
    return f"{name} {value} is above {most}" if value > most else ""


def _first(objections: Iterable[str]) -> str:
    return next(filter(None, objections), "")
