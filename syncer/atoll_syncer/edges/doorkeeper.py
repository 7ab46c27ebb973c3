"""Who calls: looks at the certificate of each call's peer before the rules see anything of it.

`admission` has the rules. In plain text there is nobody to look at, and all is let through.
"""

import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import structlog
from cryptography import x509

from atoll_protos.network.identity import Identity
from atoll_syncer.driver import Driver
from atoll_syncer.edges import admission
from atoll_syncer.edges.admission import CallRefusal
from atoll_syncer.model.roster import PLAIN_TEXT, Certificate

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
        for reason in admission.Reason if identity else ():  # also of those that are 0
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
        uris = [each.decode() for each in context.auth_context().get(PEER_URI, ())]
        peer = admission.identify(self.identity.owner, uris, asked)
        if isinstance(peer, CallRefusal):
            found: CallRefusal | None = peer
        else:
            found = rule(peer) or self._revoked(peer, asked, slot)
        if found is None:
            return peer
        log.warning("peer refused", peer=context.peer(), reason=str(found))
        self.driver.machine.metrics.refuse_peer(found.reason, str(found), self.driver.now())
        return found

    def _revoked(self, peer: Identity, asked: str, slot: str) -> CallRefusal | None:
        listed = self.driver.shard.state.expected
        of_region = admission.of_generation(peer, listed.limit(peer.region).generation, asked)
        return of_region or admission.of_machine(peer, listed.given, asked, slot)

    def certificate(self, context: Any, peer: Identity | None) -> Certificate:
        """What this peer, which was let in, has shown: the session that it opens ends with it."""
        if peer is None:
            return PLAIN_TEXT
        (text,) = context.auth_context()[PEER_CERTIFICATE]
        not_after = x509.load_pem_x509_certificate(text).not_valid_after_utc.timestamp()
        return Certificate(
            region=peer.region if peer.role in admission.REVOCABLE else "",
            machine=peer.machine,
            generation=peer.generation,
            until=self.driver.now() + not_after - time.time(),
        )

    def speaks(self, peer: Identity) -> CallRefusal | None:
        assert self.identity is not None, "plain text has no peers"
        return admission.of_intent(peer, self.identity.region)

    async def admit(
        self, context: Any, asked: str, rule: Callable[[Identity], CallRefusal | None]
    ) -> Identity | None:
        found = self.look(context, asked, rule)
        if isinstance(found, CallRefusal):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(found))
            raise AssertionError("abort does not return")
        return found
