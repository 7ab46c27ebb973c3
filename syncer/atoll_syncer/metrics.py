"""Prometheus metrics of one shard: base units, counters end in _total, every label bounded.

Counters follow from the effects of the rules (`count`), gauges from the Status (`refresh`), so no
rule knows that it is measured. A new metric is one line in the constructor and one where its
value comes from. Names are a contract with dashboards and alerts (docs/operating.md).
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import MetricsHandler

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.listening import listening_socket, serve_http
from atoll_protos.states import SLOT_TEXTS, slot_text
from atoll_syncer.admission import Reason
from atoll_syncer.model.effects import Drop, Effect, EndSession, Tape
from atoll_syncer.model.state import State
from atoll_syncer.rules.status import status

PREFIX = "atoll_syncer"
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

OFFER_OUTCOMES = ("merged", "late", "rejected", "dropped")
STORE_TROUBLES = ("full", "unavailable", "missing", "corrupt")


class Metrics:
    """Everything that one shard counts; `job` and `shard` come from the scrape's own labels.

    Labels are `state` (SLOT_TEXTS), `outcome` (OFFER_OUTCOMES), `trouble` (STORE_TROUBLES),
    `reason` (admission.Reason) and `code` (the protocol's enum Code): never a slot, session,
    instance or version.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        # gauges
        self.epoch = self._gauge("epoch", "Epoch of this process, from the durable log")
        self.tick = self._gauge("tick", "Tick of the job's clock at this shard")
        self.tokens = self._gauge(
            "tokens", "Tokens that the job's learners have trained, as far as this shard knows"
        )
        self.sessions = self._gauge("sessions", "Open sessions, including observers")
        self.slots = self._gauge("slots", "Slots by state", "state")
        self.rounds_open = self._gauge("rounds_open", "Open rounds, waiting for offers")
        self.grace_seconds = self._gauge("grace_seconds", "Longest grace of the open rounds")
        self.merge_share = self._gauge(
            "merge_share_max", "Largest share of one learner in its last merge, of its weight"
        )
        self.staged_bytes = self._gauge(
            "staged_bytes", "Memory used by offers that are not merged yet"
        )
        self.late_share = self._gauge(
            "late_share", "Share of the learners' tokens that came too late for a merge, 0 to 1"
        )
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds",
            "When this shard's certificate expires, in UNIX seconds; 0 in plain text",
        )
        # counters, since the start of this process
        self.commits = self._counter("commits", "Durable commits")
        self.offers = self._counter("offers", "Offers by outcome", "outcome")
        self.zombies = self._counter(
            "zombies_refused", "Sessions refused or ended because a newer process has the slot"
        )
        self.refusals = self._counter("refusals", "Joins refused and sessions ended", "code")
        self.refused_peers = self._counter(
            "refused_peers",
            "Calls and handshakes refused for the certificate of who makes them",
            "reason",
        )
        self.refused_peer: tuple[str, float] | None = None  # why the last one was, and when
        self.recoveries = self._counter("recoveries", "Slices taken back from learners")
        self.received_bytes = self._counter(
            "received_bytes", "Bytes of offers and seeds received from learners"
        )
        self.sent_bytes = self._counter(
            "sent_bytes", "Bytes of values sent to learners and observers"
        )
        self.store_troubles = self._counter(
            "store_troubles", "Failed attempts to use the store, by kind of error", "trouble"
        )
        self.tape_dropped_lines = self._gauge(
            "tape_dropped_lines", "Lines of the event tape dropped because the disk took no more"
        )
        # times of rounds and commits
        self.quorum_seconds = self._histogram(
            "quorum_seconds", "From the start of a round to its quorum"
        )
        self.merge_seconds = self._histogram("merge_seconds", "Merge and outer step of one slice")
        self.store_seconds = self._histogram(
            "store_seconds", "Writing one version of a slice to the store"
        )
        self.commit_seconds = self._histogram(
            "commit_seconds", "From the close of a round to its durable version"
        )
        for name in SLOT_TEXTS.values():
            self.slots.labels(name)
        for outcome in OFFER_OUTCOMES:
            self.offers.labels(outcome)
        for trouble in STORE_TROUBLES:
            self.store_troubles.labels(trouble)
        for reason in Reason:
            self.refused_peers.labels(reason)

    def count(self, effect: Effect) -> None:
        """What an effect of the shard's rules means for the counters."""
        match effect:
            case Tape({"event": "commit", "recovered": True}):
                self.commits.inc()
                self.recoveries.inc()
            case Tape({"event": "commit"} as record):
                self.commits.inc()
                self.offers.labels("merged").inc(len(record["participants"]))
                self.quorum_seconds.observe(record["quorum_wait_seconds"])
                self.commit_seconds.observe(record["commit_seconds"])
            case Tape({"event": "late"}):
                self.offers.labels("late").inc()
            case Drop():
                self.offers.labels("dropped").inc()
            case EndSession(end=end):
                self.refusals.labels(pb.Code.Name(end.code)).inc()
                self.offers.labels("rejected").inc(end.code == pb.BAD_TRANSFER)
                self.zombies.inc(end.code == pb.SUPERSEDED)

    def refuse_peer(self, reason: Reason, words: str, now: float) -> None:
        """Count a peer whose certificate was refused, and keep why for Status."""
        self.refused_peers.labels(reason).inc()
        self.refused_peer = words, now

    def refresh(self, state: State, staged_bytes: int, dropped_lines: int, now: float) -> None:
        """The gauges, from what the shard sees now."""
        seen = status(state, now)
        self.epoch.set(seen.epoch)
        self.tick.set(seen.tick)
        self.tokens.set(seen.trained)
        self.sessions.set(len(state.sessions.open))
        self.rounds_open.set(sum(each.closed_at is None for each in state.rounds.open.values()))
        self.grace_seconds.set(seen.grace_seconds)
        self.late_share.set(seen.late_share)
        shares = [s.merge_share for s in seen.slots if s.state == pb.SLOT_TRAINING]
        self.merge_share.set(max(shares, default=0.0))
        self.staged_bytes.set(staged_bytes)
        self.tape_dropped_lines.set(dropped_lines)
        for name in SLOT_TEXTS.values():
            self.slots.labels(name).set(sum(slot_text(slot.state) == name for slot in seen.slots))

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}_total", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, registry=self.registry, buckets=SECONDS)


def serve(metrics: Metrics, port: int, host: str) -> None:
    """Answer scrapes on http://host:port/metrics from a thread of its own. Raises OSError."""
    handler = MetricsHandler.factory(metrics.registry)
    serve_http(listening_socket(host, port), handler, "atoll-metrics")
