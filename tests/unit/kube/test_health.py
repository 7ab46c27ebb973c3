"""What the probes say: they fail for what a restart heals, and never because nothing happens."""

from atoll_operator.kube.cache import Sight
from atoll_operator.kube.health import (
    BROKEN_SECONDS_MAX,
    ELECTION_SECONDS_MAX,
    PASS_SECONDS_MAX,
    WATCH_SECONDS_MAX,
    Ages,
    ElectionAge,
    WatchAge,
    live,
    ready,
    watch_age,
)

NODES = "/api/v1/nodes"
LEADER = ElectionAge(leads=True, holder="a", tried=1.0, answering=3600.0)
STANDBY = ElectionAge(leads=False, holder="a", tried=1.0, answering=3600.0)
UNANSWERED = ElectionAge(leads=False, holder="a", tried=1.0, answering=None)
WELL = Ages(election=LEADER, watches={NODES: WatchAge(tried=50.0, alive=50.0)})


def test_an_operator_without_jobs_and_events_is_live_and_ready() -> None:
    assert live(WELL).ok
    assert ready(WELL).ok


def test_a_pass_that_hangs_is_not_live() -> None:
    hangs = live(Ages(election=LEADER, passes={"demo/tiny": PASS_SECONDS_MAX + 1}))
    assert hangs.problems == ("the pass of demo/tiny hangs",)


def test_a_watch_that_neither_fails_nor_lives_hangs() -> None:
    silent = live(
        Ages(election=LEADER, watches={NODES: WatchAge(tried=WATCH_SECONDS_MAX + 1, alive=1e4)})
    )
    assert silent.problems == (f"the watch of {NODES} hangs",)


def test_a_standby_is_live_and_ready_and_says_who_leads() -> None:
    standby = Ages(election=STANDBY, watches=WELL.watches)
    assert live(standby).ok
    assert ready(standby).ok
    body = ready(standby).body()
    assert (body["role"], body["leader"], body["leaseSeconds"]) == ("standby", "a", 1.0)
    assert ready(WELL).body()["role"] == "leader"


def test_an_election_that_hangs_is_not_live() -> None:
    hangs = ElectionAge(leads=True, holder="a", tried=ELECTION_SECONDS_MAX + 1, answering=1e4)
    assert live(Ages(election=hangs)).problems == ("the election hangs",)


def test_a_long_outage_of_the_api_server_fails_no_probe() -> None:
    sight = Sight(tried_at=0.0, listed=True)
    sight.works(0.0)
    for second in range(10, 7200, 30):
        sight.fails("refused", float(second))
        away = Ages(election=UNANSWERED, watches={NODES: watch_age(sight, float(second))})
        assert live(away).ok
        assert ready(away).ok
    back = ElectionAge(leads=True, holder="a", tried=1.0, answering=BROKEN_SECONDS_MAX - 1)
    assert ready(Ages(election=back, watches={NODES: watch_age(sight, 7200.0)})).ok


def test_a_watch_that_is_refused_by_an_api_server_that_answers_is_not_ready() -> None:
    sight = Sight(tried_at=0.0, listed=True)
    sight.works(0.0)
    for second in range(10, 7200, 30):
        sight.fails("503: away", float(second))
    ages = Ages(election=LEADER, watches={NODES: watch_age(sight, 7200.0)})
    assert live(ages).ok
    assert ready(ages).problems == (f"{NODES} cannot be watched: 503: away",)
    sight.works(7201.0)
    assert ready(Ages(election=LEADER, watches={NODES: watch_age(sight, 7202.0)})).ok


def test_a_short_break_of_a_watch_is_no_reason_not_to_be_ready() -> None:
    broken = WatchAge(tried=1.0, alive=20.0, broken=BROKEN_SECONDS_MAX - 1, problem="reset")
    assert ready(Ages(election=LEADER, watches={NODES: broken})).ok


def test_before_everything_is_listed_the_operator_is_not_ready_and_says_why() -> None:
    unlisted = WatchAge(tried=1.0, broken=1.0, problem="403: forbidden", listed=False)
    assert ready(Ages(election=LEADER, watches={NODES: unlisted})).problems == (
        f"{NODES} is not listed yet: 403: forbidden",
    )
    assert live(Ages(election=LEADER, watches={NODES: unlisted})).ok


def test_the_body_reports_every_age() -> None:
    ages = Ages(
        election=STANDBY, last_pass=1.26, passes={"demo/tiny": 0.5},
        watches={NODES: WatchAge(tried=1.0, alive=2.04), "/pods": WatchAge(tried=1.0)},
    )  # fmt: skip
    assert live(ages).body() == {
        "ok": True,
        "problems": [],
        "role": "standby",
        "leader": "a",
        "leaseSeconds": 1.0,
        "lastPassSeconds": 1.3,
        "runningPassSeconds": {"demo/tiny": 0.5},
        "watchSeconds": {NODES: 2.0, "/pods": None},
    }
