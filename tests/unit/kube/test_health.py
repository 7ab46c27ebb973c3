"""What the probes say: they fail for what a restart heals, and never because nothing happens."""

from atoll_operator.kube.cache import Sight
from atoll_operator.kube.health import (
    BROKEN_SECONDS_MAX,
    PASS_SECONDS_MAX,
    WATCH_SECONDS_MAX,
    Ages,
    WatchAge,
    live,
    ready,
    watch_age,
)

NODES = "/api/v1/nodes"
WELL = Ages(watches={NODES: WatchAge(tried=50.0, alive=50.0)})


def test_an_operator_without_jobs_and_events_is_live_and_ready() -> None:
    assert live(WELL).ok
    assert ready(WELL).ok


def test_a_pass_that_hangs_is_not_live() -> None:
    hangs = live(Ages(passes={"demo/tiny": PASS_SECONDS_MAX + 1}))
    assert hangs.problems == ("the pass of demo/tiny hangs",)


def test_a_watch_that_neither_fails_nor_lives_hangs() -> None:
    silent = live(Ages(watches={NODES: WatchAge(tried=WATCH_SECONDS_MAX + 1, alive=1e4)}))
    assert silent.problems == (f"the watch of {NODES} hangs",)


def test_a_long_outage_of_the_api_server_kills_nobody_but_is_not_ready() -> None:
    sight = Sight(tried_at=0.0, listed=True)
    sight.works(0.0)
    for second in range(10, 7200, 30):
        sight.fails("503: away", float(second))
    ages = Ages(watches={NODES: watch_age(sight, 7200.0)})
    assert live(ages).ok
    assert ready(ages).problems == (f"{NODES} cannot be watched: 503: away",)
    sight.works(7201.0)
    assert ready(Ages(watches={NODES: watch_age(sight, 7202.0)})).ok


def test_a_short_break_of_a_watch_is_no_reason_not_to_be_ready() -> None:
    broken = WatchAge(tried=1.0, alive=20.0, broken=BROKEN_SECONDS_MAX - 1, problem="reset")
    assert ready(Ages(watches={NODES: broken})).ok


def test_before_everything_is_listed_the_operator_is_not_ready_and_says_why() -> None:
    unlisted = WatchAge(tried=1.0, broken=1.0, problem="403: forbidden", listed=False)
    assert ready(Ages(watches={NODES: unlisted})).problems == (
        f"{NODES} is not listed yet: 403: forbidden",
    )
    assert live(Ages(watches={NODES: unlisted})).ok


def test_the_body_reports_every_age() -> None:
    ages = Ages(
        last_pass=1.26, passes={"demo/tiny": 0.5},
        watches={NODES: WatchAge(tried=1.0, alive=2.04), "/pods": WatchAge(tried=1.0)},
    )  # fmt: skip
    assert live(ages).body() == {
        "ok": True,
        "problems": [],
        "lastPassSeconds": 1.3,
        "runningPassSeconds": {"demo/tiny": 0.5},
        "watchSeconds": {NODES: 2.0, "/pods": None},
    }
