"""Prometheus metrics of one shard: base units, counters end in _total, every label bounded.

Counters follow from the effects of the rules, gauges from the Status, so no rule knows that it is
measured. Names are a contract with dashboards and alerts (docs/reference.md).
"""

from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import MetricsHandler

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import SLOT_TEXTS, slot_text
from atoll_protos.network.listening import listening_socket, serve_http
from atoll_syncer.model.effects import Drop, Effect, EndSession, TapeLine
from atoll_syncer.model.roster import MergeFindings
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.status import status

PREFIX = "atoll_syncer"
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

RATIOS = (0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 10.0, 30.0, 100.0)
COSINES = (-0.5, -0.1, 0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)

OFFER_OUTCOMES = ("merged", "late", "rejected", "dropped")
TOKEN_CLASSES = ("merged", "overlap", "late", "lost", "pending")
STORE_REQUESTS = ("put", "get", "list", "delete")
STORE_TROUBLES = ("full", "unavailable", "missing", "corrupt")

M = TypeVar("M")


class ShardMetrics:
    """`job` and `shard` come from the scrape; no label is a slot, session, instance or version."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        gauge = partial(self._made, Gauge)
        self.epoch = gauge("epoch", "Epoch of this process, from the durable log")
        self.tick = gauge("tick", "Tick of the job's clock at this shard")
        self.tokens = gauge("tokens", "Tokens that learners have trained, as this shard knows")
        self.token_classes = gauge(
            "tokens_by_class",
            "Trained tokens by what became of them, mean over the slices of this shard",
            **{"class": TOKEN_CLASSES},
        )
        self.uptime_share = gauge(
            "uptime_share", "Share of the time so far in which a learner was in training, 0 to 1"
        )
        self.sessions = gauge("sessions", "Open sessions, including observers")
        self.slots = gauge("slots", "Slots by state", state=SLOT_TEXTS.values())
        self.rounds_open = gauge("rounds_open", "Open rounds, waiting for offers")
        self.grace_seconds = gauge("grace_seconds", "Longest grace of the open rounds")
        self.merge_share = gauge("merge_share_max", "Largest share of a learner in its last merge")
        self.staged_bytes = gauge("staged_bytes", "Memory used by offers that are not merged yet")
        self.late_share = gauge("late_share", "Share of tokens too late for a merge, 0 to 1")
        self.certificate_expiry = gauge(
            "certificate_expiry_timestamp_seconds",
            "When this shard's certificate expires, in UNIX seconds; 0 in plain text",
        )
        self.tape_dropped_lines = gauge(
            "tape_dropped_lines", "Lines of the event tape dropped because the disk took no more"
        )
        # since the start of this process
        counter = partial(self._made, Counter)
        self.commits = counter("commits", "Durable commits")
        self.merges = counter("merges", "Durable commits that merge offers")
        self.offers = counter("offers", "Offers by outcome", outcome=OFFER_OUTCOMES)
        self.zombies = counter(
            "zombies_refused", "Sessions refused or ended because a newer process has the slot"
        )
        self.refusals = counter("refusals", "Joins refused and sessions ended", code=())
        self.refused_peers = counter(
            "refused_peers", "Calls refused for the certificate of who makes them", reason=()
        )
        self.refused_peer: tuple[str, float] | None = None  # why the last one was, and when
        self.recoveries = counter("recoveries", "Slices taken back from learners")
        self.received_bytes = counter(
            "received_bytes", "Bytes of offers and seeds received, by region", region=()
        )
        self.sent_bytes = counter(
            "sent_bytes", "Bytes of values sent, by region; without one to observers", region=()
        )
        self.store_troubles = counter(
            "store_troubles",
            "Failed attempts to use the store, by kind of error",
            trouble=STORE_TROUBLES,
        )
        self.store_requests = counter(
            "store_requests",
            "Requests to the bucket of an object store; a look at a name is a get",
            kind=STORE_REQUESTS,
        )
        histogram = partial(self._made, partial(Histogram, buckets=SECONDS))
        self.offer_norm_ratio = self._made(
            partial(Histogram, buckets=RATIOS),
            "offer_norm_ratio",
            "Norm of an offer divided by the median of its round",
        )
        self.offer_cosine = self._made(
            partial(Histogram, buckets=COSINES),
            "offer_cosine",
            "Cosine of a merged offer with the mean of its round, on a sample of its values",
        )
        self.quorum_seconds = histogram("quorum_seconds", "From the start of a round to its quorum")
        self.merge_seconds = histogram("merge_seconds", "Merge and outer step of one slice")
        self.store_seconds = histogram("store_seconds", "Writing a version of a slice to the store")
        self.commit_seconds = histogram(
            "commit_seconds", "From the close of a round to its durable version"
        )

    def _made(self, kind: Callable[..., M], name: str, text: str, /, **labels: Iterable[str]) -> M:
        """Return a metric, and a sample for each value of its label that is known."""
        metric: Any = kind(f"{PREFIX}_{name}", text, tuple(labels), registry=self.registry)
        for values in labels.values():
            for value in values:
                metric.labels(value)
        made: M = metric
        return made

    def merged(self, found: MergeFindings) -> None:
        usual = median(found.norms.values()) if found.norms else 0.0
        for norm in found.norms.values() if usual else ():
            self.offer_norm_ratio.observe(norm / usual)
        for cosine in found.cosines.values():
            self.offer_cosine.observe(cosine)

    def count(self, effect: Effect) -> None:
        match effect:
            case TapeLine({"event": "commit", "recovered": True}):
                self.commits.inc()
                self.recoveries.inc()
            case TapeLine({"event": "commit"} as record):
                self.commits.inc()
                self.offers.labels("merged").inc(len(record["participants"]))
                self.merges.inc(bool(record["participants"]))
                self.quorum_seconds.observe(record["quorum_wait_seconds"])
                self.commit_seconds.observe(record["commit_seconds"])
            case TapeLine({"event": "late"}):
                self.offers.labels("late").inc()
            case Drop():
                self.offers.labels("dropped").inc()
            case EndSession(end=end):
                self.refusals.labels(pb.Code.Name(end.code)).inc()
                self.offers.labels("rejected").inc(end.code == pb.BAD_TRANSFER)
                self.zombies.inc(end.code == pb.SUPERSEDED)

    def refuse_peer(self, reason: str, words: str, now: float) -> None:
        self.refused_peers.labels(reason).inc()
        self.refused_peer = words, now

    def refresh(self, state: ShardState, staged_bytes: int, dropped_lines: int, now: float) -> None:
        seen = status(state, now)
        self.epoch.set(seen.epoch)
        self.tick.set(seen.tick)
        self.tokens.set(seen.trained)
        for name in TOKEN_CLASSES:
            tokens = getattr(seen.counts, name) / max(1, seen.counts.slices)
            self.token_classes.labels(name).set(tokens)
        if seen.seconds:
            self.uptime_share.set(seen.training_seconds / seen.seconds)
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


def serve(metrics: ShardMetrics, port: int, host: str) -> None:
    """Answer scrapes on http://host:port/metrics from a thread of its own. Raises OSError."""
    handler = MetricsHandler.factory(metrics.registry)
    serve_http(listening_socket(host, port), handler, "atoll-metrics")
