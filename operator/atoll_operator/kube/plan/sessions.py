"""Which pods' sessions are dead, as the syncer tells; pure (DESIGN.md, Node loss)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE
from atoll_operator.kube.observe import Pod

DEAD_STATES = frozenset({pb.SLOT_LOST, pb.SLOT_LEFT})
REPORT_SECONDS_MAX = 10.0  # reports come at least every 2 s
ABSENT_SECONDS = 10.0  # after a registrar's restart learners join within seconds
SILENT_SECONDS = 5.0  # of a shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """UIDs of pods whose session or shard is dead, and of those about which nobody can say."""

    dead: frozenset[str]
    unseen: frozenset[str]


def judge(
    pods: Sequence[Pod],
    registrar: pb.StatusReply | None,
    absent_seconds: Mapping[str, float],
    silent_seconds: Mapping[int, float],
) -> Sessions:
    """`absent_seconds` by slot: how long the registrar has not known it; `silent` by shard."""
    slots = {slot.slot: slot for slot in registrar.slots} if registrar else {}
    dead, unseen = set(), set()
    for pod in pods:
        if pod.role == SHARD_ROLE:
            if silent_seconds.get(pod.shard, 0.0) >= SILENT_SECONDS:
                dead.add(pod.uid)
        elif pod.role != LEARNER_ROLE or registrar is None:
            unseen.add(pod.uid)
        elif _is_dead(pod, slots.get(pod.slot), absent_seconds.get(pod.slot, 0.0)):
            dead.add(pod.uid)
    return Sessions(dead=frozenset(dead), unseen=frozenset(unseen))


def _is_dead(pod: Pod, slot: pb.SlotStatus | None, absent_seconds: float) -> bool:
    if slot is None:
        return absent_seconds >= ABSENT_SECONDS
    return (
        slot.state in DEAD_STATES
        or slot.uid != pod.uid
        or slot.seconds_since_report > REPORT_SECONDS_MAX
    )


def to_retire(pod: Pod, registrar: pb.StatusReply | None) -> int | None:
    """The word after which nobody shall own the slot of a pod that is about to be deleted."""
    slot = _slot(pod, registrar)
    if slot is None or (slot.owner_word and not slot.owner_uid):
        return None
    return slot.owner_word


def to_name(
    pods: Iterable[Pod], registrar: pb.StatusReply | None, absent_seconds: Mapping[str, float]
) -> list[tuple[Pod, int | None]]:
    """Pods that wait for the operator's word, with the slot's last one.

    None when the registrar does not show the slot: after its restart, until somebody has joined.
    """
    found: list[tuple[Pod, int | None]] = []
    if registrar is None or registrar.state not in (pb.SHARD_SERVING, pb.SHARD_FINAL):
        return found
    for pod in pods:
        if pod.role != LEARNER_ROLE or pod.terminating or pod.phase != "Running":
            continue
        slot = _slot(pod, registrar)
        if slot is None:
            if absent_seconds.get(pod.slot, 0.0) >= ABSENT_SECONDS:
                found.append((pod, None))
        elif slot.owner_word and slot.owner_uid != pod.uid:
            found.append((pod, slot.owner_word))
    return found


def _slot(pod: Pod, registrar: pb.StatusReply | None) -> pb.SlotStatus | None:
    if registrar is None:
        return None
    return next((slot for slot in registrar.slots if slot.slot == pod.slot), None)
