"""Who may call what: decided from the identity in a peer's certificate (rule 37).

gRPC has verified the certificate before: it is in date, and an authority of ours has issued it. The
functions take the identity and what is asked for, return None or a `CallRefusal`, and do no I/O.
`Doorkeeper` asks them for each call before the rules see anything of it. In plain text nobody is
asked, and all is let through.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from cryptography import x509

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SENTENCE_LETTERS_MAX, SpecError, printable
from atoll_protos.names import split_slot
from atoll_protos.network.credentials import Identity, JobIdentity, Role
from atoll_syncer.driver import Driver
from atoll_syncer.model.roster import PLAIN_TEXT, Certificate

# A shard takes exports of the whole job on a schedule, and joins the others for that.
OBSERVERS: Final = frozenset({Role.OBSERVER, Role.EVALUATOR, Role.OPERATOR, Role.SHARD})
REVOCABLE: Final = frozenset({Role.LEARNER, Role.OPERATOR})  # what `atoll credentials` prints
SHARDS: Final = frozenset({Role.SHARD})


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
    """Return the peer with these URI names, if it is of `owner`, the job of this shard."""
    needed = f"a process of {owner}"

    def refused(reason: Reason, presented: object) -> CallRefusal:
        return CallRefusal(reason=reason, asked=asked, needed=needed, presented=f"{presented}")

    try:
        if len(uris) != 1:
            raise SpecError("identity", f"{len(uris)} URIs", "use one")
        peer = Identity.parse(uris[0])
    except SpecError:
        shown = printable(", ".join(uris)) or "no URI"
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
    """Pass a name that is no slot: the rules refuse it in their own words."""
    if join.observer:
        return of_roles(peer, OBSERVERS, "observing")
    asked = f"joining as '{printable(join.slot)}'"
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
    return _of_region(peer, Role.OPERATOR, region, f"naming the owner of '{printable(slot)}'")


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
    shown = printable(slot)
    return CallRefusal(
        reason=Reason.OTHER_SLOT,
        asked=f"joining as '{shown}'",
        needed=f"a machine to which the job's list gives '{shown}'",
        presented=f"{peer}, which has {printable(', '.join(sorted(own))) or 'no slot'},",
    )


def of_bulk(peer: Identity, session: Identity | None) -> CallRefusal | None:
    """Refuse a Bulk stream of a session that another peer has opened."""
    if session is not None and replace(peer, generation=session.generation) == session:
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


PEER_URI = "peer_spiffe_id"  # gRPC's name of the only URI of a peer's certificate
PEER_CERTIFICATE = "x509_pem_cert"  # and of the certificate itself

log = structlog.get_logger()


def anybody(peer: Identity) -> CallRefusal | None:
    del peer
    return None


class Doorkeeper:
    """Looks at who calls, in a server with mutual TLS; lets everybody in without an identity."""

    def __init__(self, identity: Identity | None, driver: Driver) -> None:
        self.identity, self.driver = identity, driver
        for reason in Reason if identity else ():  # also of those that are 0
            driver.machine.metrics.refused_peers.labels(reason)

    def look(
        self,
        context: Any,
        asked: str,
        rule: Callable[[Identity], CallRefusal | None],
        slot: str = "",
    ) -> Identity | CallRefusal | None:
        """Who it is, if it is one of the job's and `rule` allows it; None in plain text.

        `slot`: that of a learner's Join.
        """
        if self.identity is None:
            return None
        uris = _uris(context)
        peer = identify(self.identity.owner, uris, asked)
        if isinstance(peer, CallRefusal):
            found: CallRefusal | None = peer
        else:
            found = rule(peer) or self._revoked(peer, asked, slot)
        if found is None:
            return peer
        log.warning("peer refused", peer=context.peer(), reason=str(found))
        self.driver.machine.metrics.refuse_peer(found.reason, str(found), self.driver.now())
        return found

    def caller(self, context: Any) -> str:
        """Who it says it is in its certificate, of the job or not; empty in plain text."""
        return printable(", ".join(_uris(context)), SENTENCE_LETTERS_MAX) if self.identity else ""

    def _revoked(self, peer: Identity, asked: str, slot: str) -> CallRefusal | None:
        listed = self.driver.shard.state.expected
        of_region = of_generation(peer, listed.limit(peer.region).generation, asked)
        return of_region or of_machine(peer, listed.given, asked, slot)

    def certificate(self, context: Any, peer: Identity | None) -> Certificate:
        """Return the admitted peer's certificate: the session that it opens ends with it."""
        if peer is None:
            return PLAIN_TEXT
        (text,) = context.auth_context()[PEER_CERTIFICATE]
        not_after = x509.load_pem_x509_certificate(text).not_valid_after_utc.timestamp()
        return Certificate(
            region=peer.region if peer.role in REVOCABLE else "",
            machine=peer.machine,
            generation=peer.generation,
            until=self.driver.now() + not_after - time.time(),
        )

    def speaks(self, peer: Identity) -> CallRefusal | None:
        assert self.identity is not None, "plain text has no peers"
        return of_intent(peer, self.identity.region)

    async def admit(
        self, context: Any, asked: str, rule: Callable[[Identity], CallRefusal | None]
    ) -> Identity | None:
        found = self.look(context, asked, rule)
        if isinstance(found, CallRefusal):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(found))
            raise AssertionError("abort does not return")
        return found


def _uris(context: Any) -> list[str]:
    return [each.decode() for each in context.auth_context().get(PEER_URI, ())]
