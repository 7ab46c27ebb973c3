from atoll_syncer.model.log import TermBegun
from atoll_syncer.storage.journal import Heartbeat
from atoll_syncer.storage.takeover import Action, View, decide

BEAT = Heartbeat(pod="old", instance="old-1", epoch=3, count=7, learners=("u-1",))
T = 10.0


def terms(*pods: str) -> list[TermBegun]:
    return [
        TermBegun(epoch=n, pod=pod, instance=f"{pod}-{n}") for n, pod in enumerate(pods, start=1)
    ]


def view(*pods: str, beat: Heartbeat | None = BEAT) -> View:
    return View(pod="new", terms=terms(*pods), beat=beat, beat_seen_at=100.0)


def action(seen: View, now: float) -> Action:
    return decide(seen, patience_seconds=T, now=now).action


def test_a_first_process_reigns_at_once() -> None:
    assert action(view(beat=None), 0.0) is Action.TAKE_OVER


def test_a_restarted_pod_takes_over_from_itself_at_once() -> None:
    assert action(view("old", "new"), 100.0) is Action.TAKE_OVER


def test_a_pod_that_was_followed_never_reigns_again() -> None:
    decision = decide(view("new", "old"), patience_seconds=T, now=1e9)
    assert decision.action is Action.LEAVE
    assert decision.reason == "pod old has followed this pod"


def test_a_newcomer_waits_until_the_heartbeat_has_stood_still() -> None:
    waiting = decide(view("old"), patience_seconds=T, now=109.9)
    assert waiting.action is Action.WAIT
    decision = decide(view("old"), patience_seconds=T, now=110.0)
    assert decision.action is Action.TAKE_OVER
    assert decision.reason == "no heartbeat of pod old for 10 s"


def test_without_any_heartbeat_it_waits_from_its_first_look() -> None:
    assert action(view("old", beat=None), 105.0) is Action.WAIT
    assert action(view("old", beat=None), 110.0) is Action.TAKE_OVER
