"""What one pass does and says, as frozen values: the effectful side decides nothing."""

from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observed.observation import ChildRefusal, Object, Pod
from atoll_operator.kube.plan.certificates import NOTHING, CertificateWork
from atoll_operator.kube.plan.events import Event
from atoll_operator.kube.plan.status import Mark, StatusWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """An object to delete, if it still has this UID."""

    kind: str
    name: str
    uid: str
    reason: str
    key: tuple[str, str] | None = None  # of a pod: its place and the cause (`restarts`)
    event: Event | None = None  # to be written when it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """A child that is applied again because somebody else has changed it."""

    key: tuple[str, str]  # kind and name
    text: str  # which fields, with the values found and wanted
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one pass does to the children of a job, in this order."""

    check: tuple[Object, ...] = ()  # those of `apply` that the API server tries first
    partly: bool = True  # what it finds right is applied, whatever else it refuses
    certificates: CertificateWork = NOTHING  # Secrets to write before anything that mounts them
    apply: tuple[Object, ...] = ()  # children by server-side apply; live ones carry their UID
    reverts: tuple[Revert, ...] = ()  # those of them that somebody else has changed
    prune: tuple[Deletion, ...] = ()  # children that are no longer asked for
    refused: tuple[ChildRefusal, ...] = ()  # wanted as they are, and not taken by the API server
    wait_seconds: float | None = None  # until the next revert that was put off


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOwner:
    """One SetOwner to say: from now on `uid` alone may act for the slot (`sessions`)."""

    pod: str  # name of the pod that is to own the slot
    slot: str
    uid: str
    generation: int | None  # of the slot's owner; None: ask for it first


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReplacement:
    """A pod on a lost node that may be deleted now, after the last checks of `apply`."""

    pod: Pod
    reason: str
    silent_renewal: str | None  # renewTime that must still stand; None: the Lease decides nothing
    retire_generation: int | None  # of the slot's owner, to retire it; None: no need to
    silent_seconds: float  # since the node's last sign of life
    key: tuple[str, str]  # its place and the cause
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one pass does, in this order, and what it says."""

    at: float  # when the observation was made, monotonic seconds
    namespace: str
    job: str
    registrar_address: str = ""
    intent: pb.StatusRequest = field(default_factory=pb.StatusRequest)
    """What the shards are told with each question; empty: nothing."""
    storms: tuple[str, ...] = ()  # regions, to be remembered

    children: Changes = Changes()
    refused: tuple[ChildRefusal, ...] = ()  # children and certificates: still asked for, refused
    replace: tuple[PodReplacement, ...] = ()
    delete: tuple[Deletion, ...] = ()  # pods, with their grace
    owners: tuple[SlotOwner, ...] = ()
    restart: tuple[Deletion, ...] = ()  # pods of an old template, with their grace
    expire: Deletion | None = None  # the job itself

    marks: tuple[Mark, ...] = ()  # of learners' pods that begin or cease to train
    training: frozenset[str] = frozenset()  # UIDs of pods whose learner trains
    pods: tuple[Pod, ...] = ()
    status: StatusWrite | None = None  # None: nothing to write
    pause_seconds: float | None = None  # until the next pass; None: only an event brings one

    @property
    def acts(self) -> bool:
        """Whether it changes anything but the status: then the shards' answers grow old."""
        changed = self.children.apply or self.children.prune
        return bool(changed or self.replace or self.delete or self.owners or self.restart)
