"""What the probes say: they fail for what a restart heals, and never because nothing happens."""

from atoll_operator.kube.health import PASS_SECONDS_MAX, WATCH_SECONDS_MAX, Ages, live, ready

QUIET = Ages(last_pass=None, watches={"/api/v1/nodes": 50.0}, events={"pods": None})


def test_an_operator_without_jobs_and_events_is_live_and_ready() -> None:
    quiet = Ages(last_pass=1e6, watches={"/api/v1/nodes": 50.0}, events={"pods": 1e6})
    assert live(QUIET).ok
    assert live(quiet).ok
    assert ready(quiet, listed=True).ok


def test_a_pass_that_hangs_and_a_watch_without_bookmarks_are_not_live() -> None:
    hangs = live(Ages(passes={"demo/tiny": PASS_SECONDS_MAX + 1}))
    assert hangs.problems == ("the pass of demo/tiny hangs",)
    silent = live(Ages(watches={"/api/v1/nodes": WATCH_SECONDS_MAX + 1}))
    assert silent.problems == ("the watch of /api/v1/nodes is silent",)


def test_before_nodes_are_listed_the_operator_is_not_ready() -> None:
    assert not ready(QUIET, listed=False).ok


def test_the_body_reports_every_age() -> None:
    ages = Ages(
        last_pass=1.26, passes={"demo/tiny": 0.5}, watches={"/api/v1/nodes": 2.0},
        events={"pods": 3.0, "services": None},
    )  # fmt: skip
    assert live(ages).body() == {
        "ok": True,
        "problems": [],
        "lastPassSeconds": 1.3,
        "runningPassSeconds": {"demo/tiny": 0.5},
        "watchSeconds": {"/api/v1/nodes": 2.0},
        "lastEventSeconds": {"pods": 3.0, "services": None},
    }
