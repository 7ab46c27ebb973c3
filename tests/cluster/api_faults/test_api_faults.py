"""What the API server may do to the operator: it converges, makes nothing twice, deletes no wrong.

One operator runs here as a process, against the API server of the lab's second cluster, through a
proxy that spoils what a test wants spoilt (`faulty`). Jobs need no node for that: what counts are
the objects that the operator makes. One job trains all the time, and must see nothing.
"""

import random
import sys
import time
from collections import Counter
from typing import Any

import pytest

from cluster.api_faults.faulty import Refusal
from cluster.api_faults.world import CONVERGES_SECONDS_MAX, LEASE, ApiServer, World, edit
from cluster.kubectl import until
from cluster.training import Job, pass_seconds

SPOILT_SECONDS = 15.0
AWAY_SECONDS = 300.0
CALLS_A_MINUTE_MAX = 400  # of one operator that makes two jobs against every fault
CALLS_AWAY_A_MINUTE_MAX = 250  # of one whose API server cuts its connections: 13 watches, the Lease
REFUSALS: dict[int, dict[str, str]] = {
    404: {}, 409: {}, 410: {}, 422: {}, 429: {"Retry-After": "2"}, 500: {}, 503: {},
}  # fmt: skip


@pytest.mark.long
def test_half_of_all_requests_refused_with_any_status_change_nothing_of_what_comes_out(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    begun = time.monotonic()
    for status in REFUSALS:
        job = Job(kube=world.kube, namespace=world.namespace, name=f"under-{status}")
        world.proxy.faults.refuses = _half(status, seed=status)
        world.apply(job.name, {"eu-west": 2, "us-east": 1})
        pass_seconds(SPOILT_SECONDS)
        world.proxy.faults.refuses = _none
        world.comes_to(job, first)
        made, moment = world.children(job), time.monotonic()
        world.proxy.faults.refuses = _half(status, seed=status + 1)
        edit(job)
        pass_seconds(SPOILT_SECONDS)
        world.proxy.faults.refuses = _none
        world.comes_to(job, second)
        assert world.has_kept(job, made), status
        assert not world.wrong_deletions(moment), status
        job.kubectl("delete", "dtj", job.name, "--wait=false")
    _assert_at_most(CALLS_A_MINUTE_MAX, world.proxy.busiest_minute(begun))
    assert world.probe("livez")[0] == 200


def break_off(world: World) -> None:
    for _ in range(4):
        world.proxy.break_off()
        pass_seconds(2.0)


def answer_late(world: World) -> None:
    world.proxy.faults.delay_seconds = 4.0


def hang_what_is_open(world: World) -> None:
    """Watches that are open hang, new ones work: half-open connections after a lost router."""
    world.proxy.hang_what_is_open()


@pytest.mark.long
def test_connections_that_break_off_or_answer_late_or_die_without_a_word_lose_no_edit(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    begun = time.monotonic()
    for spoil in (break_off, answer_late, hang_what_is_open):
        job = world.apply(spoil.__name__.replace("_", "-"), {"eu-west": 2, "us-east": 1})
        if spoil is break_off:
            spoil(world)
        world.comes_to(job, first)
        made, moment = world.children(job), time.monotonic()
        spoil(world)
        edit(job)
        if spoil is break_off:
            world.proxy.break_off()
        world.comes_to(job, second)
        world.proxy.faults.delay_seconds = 0.0
        assert world.has_kept(job, made), spoil
        assert not world.wrong_deletions(moment), spoil
        job.kubectl("delete", "dtj", job.name, "--wait=false")
    _assert_at_most(CALLS_A_MINUTE_MAX, world.proxy.busiest_minute(begun))
    assert world.probe("livez")[0] == 200
    assert world.leads()


def test_an_api_server_that_is_killed_and_starts_again_in_the_middle_of_a_run(
    world: World, steady: Job, edits: tuple[set[str], set[str]], api_server: ApiServer
) -> None:
    first, second = edits
    del steady
    edited = world.apply("edited", {"eu-west": 2, "us-east": 1})
    world.comes_to(edited, first)
    begun = world.apply("begun", {"eu-west": 2, "us-east": 1})
    edit(edited)
    api_server.restart()
    world.comes_to(begun, first)
    world.comes_to(edited, second)
    until("it leads again", world.leads, CONVERGES_SECONDS_MAX)
    assert world.probe("readyz")[0] == 200


@pytest.mark.long
def test_five_minutes_without_an_api_server_fail_no_probe_and_end_no_process(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    job = world.apply("alone", {"eu-west": 2, "us-east": 1})
    world.comes_to(job, first)
    made, moment = world.children(job), time.monotonic()
    world.proxy.faults.away = True
    world.proxy.break_off()
    edit(job)
    while time.monotonic() - moment < AWAY_SECONDS:
        pass_seconds(20.0)
        assert world.probe("livez")[0] == 200
        assert world.probe("readyz")[0] == 200, world.probe("readyz")
    assert world.probe("readyz")[1]["role"] == "standby"
    _assert_at_most(CALLS_AWAY_A_MINUTE_MAX, world.proxy.busiest_minute(moment))
    assert world.children(job) == made
    back = time.monotonic()
    world.proxy.faults.away = False
    world.comes_to(job, second)
    assert world.has_kept(job, made)
    assert not world.wrong_deletions(back)


@pytest.mark.long
def test_a_watch_that_hangs_is_left_and_fails_readiness_while_it_cannot_be_begun(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    job = world.apply("hangs", {"eu-west": 2, "us-east": 1})
    world.comes_to(job, first)
    where = f"/apis/apps/v1/namespaces/{world.namespace}/statefulsets"
    world.proxy.faults.hangs = where.__eq__
    until("it is not ready", lambda: world.probe("readyz")[0] == 503)
    body = world.probe("readyz")[1]
    assert [each for each in body["problems"] if each.startswith(where)], body
    assert len(body["problems"]) == 1, body
    assert body["role"] == "leader"
    edit(job)
    moment = time.monotonic()
    pass_seconds(10.0)
    assert not world.deletions(moment)  # what cannot be seen is not judged
    assert world.probe("livez")[0] == 200
    world.proxy.faults.hangs = _nowhere
    world.comes_to(job, second)
    until("it is ready", lambda: world.probe("readyz")[0] == 200)


def _half(status: int, seed: int) -> Any:
    """Refuse every second request by chance, but for those of the election."""
    chance = random.Random(seed)

    def refuses(verb: str, path: str) -> Refusal | None:
        del verb
        if path.endswith(f"/leases/{LEASE}") or chance.random() < 0.5:
            return None
        return status, REFUSALS[status]

    return refuses


def _assert_at_most(calls: int, minute: Counter[str]) -> None:
    sys.stderr.write(f"\n{minute.total()} requests in the busiest minute\n")
    assert minute.total() <= calls, minute.most_common()


def _none(verb: str, path: str) -> Refusal | None:
    del verb, path
    return None


def _nowhere(path: str) -> bool:
    del path
    return False
