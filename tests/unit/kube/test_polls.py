"""Shards are asked beside the passes: none waits for a shard, and none judges an old answer."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges import polls
from atoll_operator.kube.edges.polls import Polls, said_by
from atoll_operator.kube.edges.queue import Queue
from atoll_operator.kube.observed.cache import Key
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.observed.observation import ShardRefusal
from atoll_protos.network.credentials import Credentials
from unit.kube.api_server import running, until
from unit.kube.cluster_values import reply

KEY = ("demo", "tiny")
FOREIGN = ShardRefusal(text="its certificate was not issued by an authority in ca.crt")


class Shards:
    """Answers by address; one without hangs."""

    def __init__(self) -> None:
        self.answers: dict[str, pb.StatusReply] = {}
        self.calls: list[list[str]] = []
        self.open: set[str] = set()
        self.requests: list[pb.StatusRequest] = []
        self.foreign: set[object] = set()  # credentials that no shard takes
        self.reasons: dict[tuple[str, object], ShardRefusal] = {}
        self.retained: list[object] = []
        self.gate = asyncio.Event()  # open: what is asked is answered
        self.gate.set()

    async def status(
        self, addresses: Sequence[str], request: pb.StatusRequest, credentials: object = None
    ) -> list[pb.StatusReply | None]:
        if credentials in self.foreign:
            self.reasons |= {(each, credentials): FOREIGN for each in addresses}
            return [None for _ in addresses]
        self.requests.append(request)
        self.calls.append(list(addresses))
        self.open |= set(addresses)
        if not set(addresses) <= self.answers.keys():
            await asyncio.sleep(60)
        await self.gate.wait()
        return [self.answers[each] for each in addresses]

    async def retain(self, addresses: Sequence[str], used: Sequence[object]) -> None:
        self.retained = list(used)

    async def forget(self, addresses: Sequence[str]) -> None:
        self.open -= set(addresses)

    async def close(self) -> None:
        """There is no channel."""


class World:
    def __init__(self) -> None:
        self.shards, self.passes = Shards(), []  # type: ignore[var-annotated]
        shards: Any = self.shards
        self.polls = Polls(syncers=shards, done=self.passes.append)
        self.memory = JobMemory(uid="u")

    async def follow(self, *addresses: str, tls: bool = False) -> bool:
        return await self.polls.follow(KEY, self.memory, dict(enumerate(addresses)), tls=tls)

    async def polled(self) -> None:
        count = len(self.passes)
        await until(lambda: len(self.passes) > count)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """All shards are asked all the time."""
    monkeypatch.setattr(polls, "POLL_SECONDS", 0.02)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that nobody asks for is asked no more."""
    monkeypatch.setattr(polls, "POLL_SECONDS", 1000.0)


@asynccontextmanager
async def world(*, polled: bool = True) -> AsyncIterator[World]:
    """One shard, which has been asked."""
    found = World()
    found.shards.answers["a"] = reply(us_east_0="Training")
    try:
        if polled:
            assert not await found.follow("a")
            await found.polled()
        yield found
    finally:
        await found.polls.close()


async def test_the_first_answers_bring_a_pass_and_then_only_those_that_ask_for_an_action() -> None:
    async with world() as one:
        assert await one.follow("a")
        answer = one.shards.answers["a"]
        assert one.memory.replies[0].message == answer
        answer.tick += 5
        await until(lambda: one.memory.tick == answer.tick)
        assert one.passes == [KEY]
        answer.slots[0].state = pb.SLOT_LOST
        await one.polled()
        answer.intent = pb.INTENT_SUSPEND  # a word of the operator that others hear
        await one.polled()


async def test_each_question_tells_the_shards_what_the_last_pass_has_decided() -> None:
    async with world() as one:
        for intent in (pb.INTENT_SUSPEND, pb.INTENT_RUN):
            one.memory.note_intent(pb.StatusRequest(intent=intent), now=5.0)
            await until(lambda: one.shards.requests[-1].intent == one.memory.intent.intent)


@pytest.mark.usefixtures("seldom")
async def test_after_an_effect_older_answers_are_not_judged() -> None:
    async with world() as one:
        assert await one.follow("a")
        one.memory.acted_at = time.monotonic()
        assert not await one.follow("a")  # and it is asked at once, not in 1000 s
        await one.polled()
        assert await one.follow("a")
        assert len(one.shards.calls) == 2


@pytest.mark.usefixtures("seldom")
async def test_a_poll_that_had_begun_before_the_effect_does_not_count() -> None:
    async with world(polled=False) as one:
        one.shards.gate.clear()
        await one.follow("a")
        await until(lambda: bool(one.shards.calls))
        one.memory.acted_at = time.monotonic()
        assert not await one.follow("a")
        one.shards.gate.set()
        await until(lambda: len(one.passes) == 2)
        assert len(one.shards.calls) == 2
        assert await one.follow("a")


async def test_other_addresses_are_asked_at_once_and_channels_to_the_former_ones_closed() -> None:
    async with world() as one:
        one.shards.answers |= {"b": reply(), "c": reply()}
        for other in ("b", "c"):
            assert not await one.follow("a", other)
            assert one.shards.open == {"a"}
            await one.polled()
            assert await one.follow("a", other)
            assert one.shards.open == {"a", other}


async def test_a_job_that_is_gone_or_has_no_shards_is_not_asked_and_keeps_no_channel() -> None:
    async with world() as one:
        for end in (one.polls.forget(KEY), one.follow("")):
            await one.follow("a")
            await until(lambda: bool(one.shards.open))
            await end
            assert not one.polls.polls
            assert one.shards.open == set()
        assert one.memory.answered_at == {}
        one.memory = JobMemory(uid="next")  # it is made again
        assert not await one.follow("a")
        await until(lambda: bool(one.memory.replies))


async def test_a_hundred_jobs_whose_shards_hang_delay_no_other() -> None:
    passes: list[Key] = []
    memories: dict[Key, JobMemory] = defaultdict(lambda: JobMemory(uid="u"))
    async with world(polled=False) as one:

        async def reconcile(key: Key) -> float:
            await one.polls.follow(key, memories[key], {0: "a" if key == KEY else str(key)})
            passes.append(key)
            return 0.1

        queue = Queue(reconcile=reconcile)
        for name in (*map(str, range(100)), "tiny"):
            queue.add(("demo", name))
        async with running(queue.run()):
            await until(lambda: passes.count(KEY) > 3)


async def test_credentials_that_no_shard_takes_are_told_and_the_last_that_worked_stay() -> None:
    first, foreign, right = (Credentials(each, b"key", b"ca") for each in (b"1", b"2", b"3"))
    async with world(polled=False) as one:
        of_job = one.memory.certificates
        assert await one.follow("a", tls=True)
        assert not one.shards.calls  # without certificates nobody is asked
        of_job.own = {"eu-west": first}
        await one.follow("a", tls=True)
        await one.polled()
        one.shards.foreign = {foreign}
        of_job.own = {"eu-west": foreign}
        await one.follow("a", tls=True)
        await until(lambda: bool(one.polls.refusals(KEY)))
        before = len(one.shards.requests)
        await until(lambda: len(one.shards.requests) > before + 1)  # it is seen all the time
        assert one.polls.refusals(KEY) == {0: FOREIGN}
        assert of_job.of_slot("eu-west-0") == first
        assert set(one.shards.retained) == {first, foreign}
        of_job.own = {}  # the Secret is deleted
        await one.follow("a", tls=True)
        before = len(one.shards.requests)
        await until(lambda: len(one.shards.requests) > before + 1)
        of_job.own = {"eu-west": right}
        await one.follow("a", tls=True)
        await until(lambda: of_job.of_slot("eu-west-0") == right)
        await one.follow("a", tls=True)
        assert set(one.shards.retained) == {right}
        assert one.polls.refusals(KEY) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("reason", "full"), ("must_equal", "{}"), ("steps", 2), ("shard", 2), ("intent", 2)),
        *(("slot.reason", "not finite"), ("slot.trouble", "expired"), ("slot.owner_generation", 3)),
        *(("tick", 99), ("trained", 7), ("slot.tokens", 7)),
    ],
)
def test_all_but_progress_is_news(field: str, value: Any) -> None:
    one, other = reply(us_east_0="Training"), reply(us_east_0="Training")
    name = field.removeprefix("slot.")
    setattr(other if name == field else other.slots[0], name, value)
    assert (said_by([one]) == said_by([other])) == (name in ("tick", "trained", "tokens"))
    assert said_by([one]) != said_by([None])
