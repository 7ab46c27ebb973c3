"""Shards are asked beside the passes: none waits for a shard, and none judges an old answer."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.cache import Key
from atoll_operator.kube.edges import polls
from atoll_operator.kube.edges.polls import Polls, said_by
from atoll_operator.kube.edges.queue import Queue
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.observation import ShardRefusal
from atoll_protos.credentials import Credentials
from unit.kube.api_server import until
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
        return [self.answers[each] for each in addresses]

    async def retain(self, addresses: Sequence[str], used: Sequence[object]) -> None:
        self.retained = list(used)

    async def forget(self, addresses: Sequence[str]) -> None:
        self.open -= set(addresses)


class World:
    def __init__(self) -> None:
        self.shards, self.passes = Shards(), []  # type: ignore[var-annotated]
        shards: Any = self.shards
        self.polls = Polls(syncers=shards, done=self.passes.append)
        self.memory = Memory(uid="u")

    async def follow(self, *addresses: str, tls: bool = False) -> bool:
        return await self.polls.follow(KEY, self.memory, dict(enumerate(addresses)), tls=tls)

    async def polled(self) -> None:
        count = len(self.passes)
        await until(lambda: len(self.passes) > count)


@asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.02) -> AsyncIterator[World]:
    monkeypatch.setattr(polls, "POLL_SECONDS", seconds)
    found = World()
    found.shards.answers["a"] = reply(us_east_0="Training")
    try:
        yield found
    finally:
        await found.polls.close()


def test_the_first_answers_bring_a_pass_and_then_only_those_that_ask_for_an_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with world(monkeypatch) as one:
            assert not await one.follow("a")
            await one.polled()
            assert await one.follow("a")
            assert one.memory.replies[0].message == one.shards.answers["a"]
            one.shards.answers["a"].tick += 5
            await until(lambda: one.memory.tick == one.shards.answers["a"].tick)
            assert one.passes == [KEY]
            one.shards.answers["a"] = reply(us_east_0="Lost")
            await one.polled()

    asyncio.run(scenario())


def test_each_question_tells_the_shards_what_the_last_pass_has_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with world(monkeypatch) as one:
            one.memory.note_intent(pb.StatusRequest(intent=pb.INTENT_SUSPEND), now=5.0)
            await one.follow("a")
            await one.polled()
            assert one.shards.requests[0].intent == pb.INTENT_SUSPEND
            one.memory.note_intent(pb.StatusRequest(intent=pb.INTENT_RUN), now=6.0)
            await until(lambda: one.shards.requests[-1].intent == pb.INTENT_RUN)

    asyncio.run(scenario())


def test_a_word_of_the_operator_that_others_hear_brings_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with world(monkeypatch) as one:
            await one.follow("a")
            await one.polled()
            one.shards.answers["a"].intent = pb.INTENT_SUSPEND
            await one.polled()

    asyncio.run(scenario())


def test_after_an_effect_older_answers_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with world(monkeypatch, seconds=1000.0) as one:
            await one.follow("a")
            await one.polled()
            assert await one.follow("a")
            one.memory.acted_at = time.monotonic()
            assert not await one.follow("a")  # and it is asked at once, not in 1000 s
            await one.polled()
            assert await one.follow("a")
            assert len(one.shards.calls) == 2

    asyncio.run(scenario())


def test_a_poll_that_had_begun_before_the_effect_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with world(monkeypatch, seconds=1000.0) as one:
            gate = asyncio.Event()
            whole = one.shards.status

            async def slow(
                addresses: Sequence[str], request: pb.StatusRequest, credentials: object
            ) -> list[pb.StatusReply | None]:
                found = await whole(addresses, request)
                await gate.wait()
                return found

            one.shards.status = slow  # type: ignore[method-assign,assignment]
            await one.follow("a")
            await until(lambda: bool(one.shards.calls))
            one.memory.acted_at = time.monotonic()
            assert not await one.follow("a")
            gate.set()
            await until(lambda: len(one.passes) == 2)
            assert len(one.shards.calls) == 2
            assert await one.follow("a")

    asyncio.run(scenario())


def test_other_addresses_are_asked_at_once_and_channels_to_the_former_ones_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with world(monkeypatch) as one:
            one.shards.answers |= {"b": reply(), "c": reply()}
            await one.follow("a", "b")
            await one.polled()
            assert not await one.follow("a", "c")
            assert one.shards.open == {"a"}
            await one.polled()
            assert await one.follow("a", "c")
            assert one.shards.open == {"a", "c"}

    asyncio.run(scenario())


def test_a_job_that_is_gone_or_has_no_shards_is_not_asked_and_keeps_no_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with world(monkeypatch) as one:
            for end in (one.polls.forget(KEY), one.follow("")):
                await one.follow("a")
                await one.polled()
                await end
                assert not one.polls.polls
                assert one.shards.open == set()
            assert one.memory.answered_at == {}

    asyncio.run(scenario())


def test_a_job_made_again_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with world(monkeypatch) as one:
            await one.follow("a")
            await one.polled()
            one.memory = Memory(uid="next")
            assert not await one.follow("a")
            await one.polled()
            assert one.memory.replies

    asyncio.run(scenario())


def test_a_hundred_jobs_whose_shards_hang_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: dict[Key, list[float]] = {}

    async def scenario() -> None:
        async with world(monkeypatch) as one:

            async def reconcile(key: Key) -> float:
                healthy = key == KEY
                address = {0: "a" if healthy else f"unreachable-{key}"}
                memory = memories.setdefault(key, Memory(uid=str(key)))
                await one.polls.follow(key, memory, address)
                passes.setdefault(key, []).append(time.monotonic())
                return 0.1

            memories: dict[Key, Memory] = {}
            queue = Queue(reconcile=reconcile)
            for number in range(100):
                queue.add(("demo", f"cut-off-{number}"))
            queue.add(KEY)
            run = asyncio.create_task(queue.run())
            await until(lambda: len(passes.get(KEY, [])) > 3)
            run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await run

    asyncio.run(scenario())


def test_credentials_that_no_shard_takes_are_told_and_the_last_that_worked_stay_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, foreign, right = (Credentials(each, b"key", b"ca") for each in (b"1", b"2", b"3"))

    async def scenario() -> None:
        async with world(monkeypatch) as one:
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

    asyncio.run(scenario())


def test_progress_is_no_news_but_states_sessions_and_owners_are() -> None:
    one = reply(us_east_0="Training")
    moved = reply(us_east_0="Training")
    moved.tick, moved.trained, moved.slots[0].tokens = 99, 7, 7
    assert said_by([one]) == said_by([moved])
    moved.slots[0].owner_word = 3
    assert said_by([one]) != said_by([moved])
    assert said_by([one]) != said_by([None])


@pytest.mark.parametrize("field", ["reason", "must_equal", "steps", "shard", "intent"])
def test_what_a_condition_is_made_from_is_news(field: str) -> None:
    one, other = reply(us_east_0="Training"), reply(us_east_0="Training")
    setattr(other, field, "the disk is full" if field in ("reason", "must_equal") else 2)
    assert said_by([one]) != said_by([other])


@pytest.mark.parametrize("field", ["reason", "trouble"])
def test_what_is_wrong_with_a_learner_that_trains_is_news(field: str) -> None:
    one, other = reply(us_east_0="Training"), reply(us_east_0="Training")
    setattr(other.slots[0], field, "its values are not finite")
    assert said_by([one]) != said_by([other])
