"""Who may call what: decided from the identity in a peer's certificate (rule 37).

gRPC has verified the certificate before: it is in date, and an authority of ours has issued it.
Functions here take the identity and what is asked for, and return None or a `CallRefusal`. They do
no I/O, and a shard that serves plain text asks nothing of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.names import split_slot
from atoll_protos.network.identity import Identity, JobIdentity, Role

# A shard takes exports of the whole job on a schedule, and joins the others for that.
OBSERVERS: Final = frozenset({Role.OBSERVER, Role.EVALUATOR, Role.OPERATOR, Role.SHARD})
REVOCABLE: Final = frozenset({Role.LEARNER, Role.OPERATOR})  # what `atoll credentials` prints
SHARDS: Final = frozenset({Role.SHARD})
LETTERS_MAX: Final = 100  # of a name that a peer has chosen, in a refusal


class Reason(StrEnum):
    """Why a peer is refused: labels of a metric."""

    NO_IDENTITY = "no_identity"
    OTHER_JOB = "other_job"
    OTHER_RUN = "other_run"
    OTHER_REGION = "other_region"
    OTHER_ROLE = "other_role"
    REVOKED = "revoked"
    OTHER_SLOT = "other_slot"  # than the list gives to the certificate's machine
    OTHER_PEER = "other_peer"  # a session's bulk stream, from another peer than the session


PASSING: Final = (Reason.OTHER_RUN, Reason.REVOKED, Reason.OTHER_SLOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefusal:
    """What was asked for, whose certificate that needs and whose was presented."""

    reason: Reason
    asked: str
    needed: str
    presented: str

    def __str__(self) -> str:
        return (
            f"{self.asked} needs the certificate of {self.needed}, "
            f"and that of {self.presented} was presented"
        )

    @property
    def end(self) -> pb.End:
        """What a learner or observer is told.

        A shard of a former run may still stand where its successor will: that passes. Credentials
        that are revoked are replaced by others in the same folder. The list that gives a machine
        its slot may still be on its way.
        """
        return pb.End(
            code=pb.NOT_ALLOWED,
            reason=str(self),
            remedy=f"give this process the credentials of {self.needed}",
            retry=self.reason in PASSING,
        )


def identify(owner: JobIdentity, uris: Sequence[str], asked: str) -> Identity | CallRefusal:
    """The peer with these URI names, if it is of `owner`, the job of this shard."""
    needed = f"a process of {owner}"

    def refused(reason: Reason, presented: object) -> CallRefusal:
        return CallRefusal(reason=reason, asked=asked, needed=needed, presented=f"{presented}")

    try:
        if len(uris) != 1:
            raise SpecError("identity", f"{len(uris)} URIs", "use one")
        peer = Identity.parse(uris[0])
    except SpecError:
        shown = ", ".join(uris)[:LETTERS_MAX] or "no URI"
        return refused(Reason.NO_IDENTITY, f"nobody that is known ({shown})")
    if (peer.namespace, peer.job) != (owner.namespace, owner.job):
        return refused(Reason.OTHER_JOB, peer)
    if peer.uid != owner.uid:
        return refused(Reason.OTHER_RUN, peer)
    return peer


def of_roles(peer: Identity, roles: Collection[Role], asked: str) -> CallRefusal | None:
    if peer.role in roles:
        return None
    needed = f"role {' or '.join(sorted(roles))}"
    return CallRefusal(reason=Reason.OTHER_ROLE, asked=asked, needed=needed, presented=str(peer))


def of_join(peer: Identity, join: pb.Join) -> CallRefusal | None:
    """A name that is no slot is not refused here: the rules do so in their own words."""
    if join.observer:
        return of_roles(peer, OBSERVERS, "observing")
    asked = f"joining as {join.slot[:LETTERS_MAX]!r}"
    try:
        region, _ = split_slot(join.slot)
    except SpecError:
        return of_roles(peer, {Role.LEARNER}, asked)
    return _of_region(peer, Role.LEARNER, region, asked)


def of_owner(peer: Identity, slot: str) -> CallRefusal | None:
    try:
        region, _ = split_slot(slot)
    except SpecError:
        region = ""
    return _of_region(peer, Role.OPERATOR, region, f"naming the owner of {slot[:LETTERS_MAX]!r}")


def of_intent(peer: Identity, region: str) -> CallRefusal | None:
    return _of_region(peer, Role.OPERATOR, region, "saying what becomes of the job")


def of_generation(peer: Identity, generation: int, asked: str) -> CallRefusal | None:
    """Whether the certificates of a region's learners and operators have been revoked since."""
    if peer.role not in REVOCABLE or peer.generation >= generation:
        return None
    return CallRefusal(
        reason=Reason.REVOKED,
        asked=asked,
        needed=f"generation {generation} or later of region {peer.region}",
        presented=f"{peer}, generation {peer.generation}, which is revoked,",
    )


def of_machine(
    peer: Identity, given: Mapping[str, Collection[str]], asked: str, slot: str
) -> CallRefusal | None:
    """Whether the list has this peer's machine, and `slot` among its slots; empty: any call."""
    if not peer.machine or slot in (own := given.get(peer.machine, ())):
        return None
    if peer.machine not in given:
        return CallRefusal(
            reason=Reason.REVOKED,
            asked=asked,
            needed="a machine that is on the job's list",
            presented=f"{peer}, which is not on it, or not any more,",
        )
    if not slot:
        return None
    shown = slot[:LETTERS_MAX]
    return CallRefusal(
        reason=Reason.OTHER_SLOT,
        asked=f"joining as {shown!r}",
        needed=f"a machine to which the job's list gives {shown!r}",
        presented=f"{peer}, which has {', '.join(sorted(own))[:LETTERS_MAX] or 'no slot'},",
    )


def of_bulk(
    peer: Identity,
    session: Identity | None,
    slot: str = "",
    given: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> CallRefusal | None:
    """The bulk stream of a session: who has opened it, or another machine with its `slot`."""
    if session is not None:
        alike = replace(peer, generation=session.generation)
        shares = session.machine and slot in given.get(peer.machine, ())
        if alike == session or (shares and replace(alike, machine=session.machine) == session):
            return None
    return CallRefusal(
        reason=Reason.OTHER_PEER,
        asked="the bulk stream of a session",
        needed=str(session or "nobody: the session is over"),
        presented=str(peer),
    )


def _of_region(peer: Identity, role: Role, region: str, asked: str) -> CallRefusal | None:
    if peer.role is role and peer.region == region:
        return None
    reason = Reason.OTHER_REGION if peer.role is role else Reason.OTHER_ROLE
    needed = f"the {role} of region {region}" if region else f"the {role} of its region"
    return CallRefusal(reason=reason, asked=asked, needed=needed, presented=str(peer))
