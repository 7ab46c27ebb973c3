"""What a replica has only while it leads: passes, and the shards' answers.

    election: leads ──> Term: fresh lists, then the queue ──> election: leads no more, or the end
                                │                                        │
                                passes, words, polls                     cancelled and awaited

Memories, channels and the queue end with their term: what a former one has seen begin may have
ended while another replica led. A standby's watches may be behind by an event, or by a minute if
their connection has died, and what the former leader has just done must not be judged as if it had
not happened. So a term begins with a list of the jobs and of all that they are made of.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from atoll_operator.kube.edges import api
from atoll_operator.kube.edges.lease import Election
from atoll_operator.kube.edges.polls import Polls
from atoll_operator.kube.edges.queue import Queue
from atoll_operator.kube.edges.reflector import ERRORS, Reflector
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.effects.apply import Applier
from atoll_operator.kube.effects.recorder import Recorder
from atoll_operator.kube.effects.repair import Repair
from atoll_operator.kube.effects.report import StatusWriter
from atoll_operator.kube.effects.secrets import Secrets
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observe import ClusterObserver
from atoll_operator.kube.observed.cache import Key
from atoll_operator.kube.reconcile import Reconciler
from atoll_operator.kube.settings import Settings

FIRST_LISTS_SECONDS_MAX = 10.0
LIST_AGAIN_SECONDS = 1.0
FRESH_SECONDS_MAX = 90.0  # a watch that has died without a word has been begun again by then

log = structlog.get_logger()

Followed = Sequence[Reflector]


def reconciler(
    server: api.Api,
    syncers: Syncers,
    polls: Polls,
    nodes: Nodes,
    settings: Settings,
    metrics: Metrics,
) -> Reconciler:
    recorder = Recorder(api=server, metrics=metrics)
    repair = Repair(api=server, syncers=syncers, metrics=metrics, recorder=recorder)
    secrets = Secrets(api=server, metrics=metrics, settings=settings)
    return Reconciler(
        settings=settings,
        metrics=metrics,
        observer=ClusterObserver(cache=server.cache, polls=polls, nodes=nodes, secrets=secrets),
        applier=Applier(api=server, metrics=metrics, repair=repair, secrets=secrets),
        writer=StatusWriter(api=server, metrics=metrics, recorder=recorder),
    )


@dataclass(slots=True, kw_only=True)
class Term:
    """One time of leading."""

    queue: Queue
    passes: Reconciler
    polls: Polls
    syncers: Syncers

    async def run(self, follow: Followed, made_of: Followed) -> None:
        """Run until cancelled, and until all passes have ended.

        It begins when everything has been listed once, or after FIRST_LISTS_SECONDS_MAX: then a job
        whose objects cannot be listed at least says so.
        """
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LISTS_SECONDS_MAX):
                    for each in follow:
                        await each.listed.wait()
            await asyncio.gather(*(fresh(each) for each in made_of))
            for raw in self.passes.observer.cache.jobs(""):
                self.queue.add((raw["metadata"]["namespace"], raw["metadata"]["name"]))
            await self.queue.run()
        finally:
            await self.polls.close()
            await self.syncers.close()
            self.passes.metrics.held.set(0)
            self.passes.metrics.show_states(())


async def fresh(each: Reflector) -> None:
    """List a collection now; not where its watch is broken, nor for more than FRESH_SECONDS_MAX."""
    until = time.monotonic() + FRESH_SECONDS_MAX
    while not each.is_broken and time.monotonic() < until:
        try:
            await each.list_now()
        except ERRORS as error:
            log.warning("list failed", error=str(error) or type(error).__name__)
            await asyncio.sleep(LIST_AGAIN_SECONDS)
        else:
            return


@dataclass(slots=True, kw_only=True)
class Terms:
    """A term after the other, as the election says; between two of them nothing is done."""

    election: Election
    begin: Callable[[], Term]
    now: Term | None = None

    def ask(self, key: Key) -> None:
        """Ask for a pass; a standby forgets it, because a term begins with all jobs."""
        if self.now is not None:
            self.now.queue.add(key)

    def edited(self, key: Key) -> None:
        if self.now is not None:
            self.now.queue.lift(key)

    async def run(self, follow: Followed, made_of: Followed) -> None:
        """Until cancelled; raises what ends a term but for the election."""
        while True:
            await self.election.leads.wait()
            self.now = self.begin()
            parts = [
                asyncio.create_task(self.now.run(follow, made_of)),
                asyncio.create_task(self.election.stands_by.wait()),
            ]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                if parts[0].done():
                    parts[0].result()
                    raise RuntimeError("the passes have ended by themselves")
            finally:
                for each in parts:
                    each.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
                self.now = None
