from atoll_syncer.model.log import Reign
from atoll_syncer.storage.takeover import Heartbeat, Turn, View, decide

BEAT = Heartbeat(pod="old", instance="old-1", epoch=3, count=7, learners=("u-1",))
T = 10.0


def reigns(*pods: str) -> list[Reign]:
    return [Reign(epoch=n, pod=pod, instance=f"{pod}-{n}") for n, pod in enumerate(pods, start=1)]


def view(*pods: str, knocks: dict[str, float] | None = None, beat: Heartbeat | None = BEAT) -> View:
    return View(pod="new", reigns=reigns(*pods), beat=beat, beat_seen_at=100.0, knocks=knocks or {})


def turn(seen: View, now: float) -> Turn:
    return decide(seen, patience_seconds=T, now=now).turn


def test_a_first_process_reigns_at_once() -> None:
    assert turn(view(beat=None), 0.0) is Turn.REIGN


def test_a_restarted_pod_takes_over_from_itself_at_once() -> None:
    assert turn(view("old", "new"), 100.0) is Turn.REIGN


def test_a_pod_that_was_followed_never_reigns_again() -> None:
    decision = decide(view("new", "old"), patience_seconds=T, now=1e9)
    assert decision.turn is Turn.LEAVE
    assert decision.reason == "pod old has followed this pod"


def test_a_newcomer_waits_until_the_heartbeat_has_stood_still() -> None:
    waiting = decide(view("old"), patience_seconds=T, now=109.9)
    assert waiting.turn is Turn.WAIT
    decision = decide(view("old"), patience_seconds=T, now=110.0)
    assert decision.turn is Turn.REIGN
    assert decision.reason == "no heartbeat of pod old for 10 s"


def test_without_any_heartbeat_it_waits_from_its_first_look() -> None:
    assert turn(view("old", beat=None), 105.0) is Turn.WAIT
    assert turn(view("old", beat=None), 110.0) is Turn.REIGN


def test_learners_that_the_holder_does_not_have_may_end_its_reign() -> None:
    seen = view("old", knocks={"u-2": 95.0})
    assert turn(seen, 104.9) is Turn.WAIT
    decision = decide(seen, patience_seconds=T, now=105.0)
    assert decision.turn is Turn.REIGN
    assert decision.reason == "u-2 cannot reach pod old for 10 s"


def test_learners_that_the_holder_has_do_not() -> None:
    assert turn(view("old", knocks={"u-1": 0.0}), 109.0) is Turn.WAIT
