"""Which pods of learners are Ready: those whose learner is in training, as the registrar sees it.

A drain counts Ready pods, so the template of learners asks for one condition more (a readiness
gate), which this operator writes. A pod is marked as soon as its learner is Training, or Stalled.
The mark is taken back when the registrar has shown something else for IDLE_SECONDS while every
shard serves. While that cannot be seen pods stay as they are marked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.observed.observation import BUSY_STATES, Pod, with_hosts

IDLE_SECONDS = 10.0  # learners join again within seconds after a restart of the registrar


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """That a pod's learner is in training, or that it is not any more."""

    pod: str  # name
    uid: str
    trains: bool


def marks(
    pods: Sequence[Pod], replies: Sequence[pb.StatusReply | None], idle_seconds: Mapping[str, float]
) -> tuple[Mark, ...]:
    """`idle_seconds`: by UID of a head's pod, since it is shown as neither Training nor Stalled."""
    if not replies or any(r is None or r.state != pb.SHARD_SERVING for r in replies):
        return ()
    registrar = replies[0]
    slots = registrar.slots if registrar is not None else []
    busy = with_hosts(frozenset(s.uid for s in slots if s.state in BUSY_STATES), pods)
    idle = with_hosts(
        frozenset(uid for uid, seconds in idle_seconds.items() if seconds >= IDLE_SECONDS), pods
    )
    found = []
    for pod in pods:
        if pod.role != LEARNER_ROLE or not pod.gated or pod.ended or pod.terminating:
            continue
        known = busy if not pod.trains else idle
        if pod.uid in known:
            found.append(Mark(pod=pod.name, uid=pod.uid, trains=not pod.trains))
    return tuple(found)
