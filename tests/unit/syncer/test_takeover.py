"""A newcomer waits until it may take a shard over (rule 20): the decision, and the wait."""

import asyncio
import shutil
import time

import pytest

from atoll_syncer.model.history import History
from atoll_syncer.model.log import Begun, TermBegun
from atoll_syncer.storage.files import LOG, FileStore, StoreEmptied
from atoll_syncer.storage.journal import Heartbeat, Journal, write
from atoll_syncer.storage.takeover import (
    CATCH_UP_SECONDS,
    HeartbeatWatch,
    patience,
    takeover,
    wait_for_turn,
)

T = 2.5  # of a heartbeat each second


@pytest.mark.parametrize(
    ("pods", "released", "silent_seconds", "takes", "reason"),
    [
        ((), False, 0.0, True, "no process has had it yet"),
        (("old", "new"), False, 0.0, True, "this pod had it last"),
        (("old",), False, 2.4, False, "pod old has the shard"),
        (("old",), False, 2.5, True, "no sign of life of pod old for 2.5 s"),
        (("old",), True, 0.0, True, "pod old has ended in order"),
        (("new", "old"), False, 2.5, True, "no sign of life of pod old for 2.5 s"),
    ],
)
def test_a_pod_takes_over_when_it_had_the_shard_last_or_the_owner_is_silent_or_has_ended_rule_20(
    pods: tuple[str, ...], released: bool, silent_seconds: float, takes: bool, reason: str
) -> None:
    terms = [TermBegun(epoch=n + 1, pod=pod, instance=pod) for n, pod in enumerate(pods)]
    history = History.of(terms)
    decided = takeover("new", history, released=released, silent_seconds=silent_seconds, patience=T)
    assert decided == (takes, reason)


def test_patience_doubles_with_each_takeover_of_the_last_minute() -> None:
    assert patience(1.0, [], 1000.0) == T
    assert patience(2.0, [], 1000.0) == 2 * T
    assert patience(1.0, [900.0, 941.0, 999.0], 1000.0) == 4 * T
    assert patience(7.0, [998.0, 999.0], 1000.0) == 30.0


# ------------------------------------------------------------ the wait


class Shop:
    """A store, its clock, and who comes."""

    def __init__(self, store: FileStore) -> None:
        self.store, self.now, self.count = store, 1000.0, 0

    def journal(self) -> Journal:
        return Journal(self.store, lambda: self.now)

    def take_over(self, epoch: int, pod: str) -> Journal:
        """The journal of the process that begins it."""
        one = self.journal()
        one.read()
        one.append(TermBegun(epoch=epoch, pod=pod, instance=pod))
        return one

    def beat(
        self, pod: str, *, epoch: int = 1, period: float = 1.0, released: bool = False
    ) -> None:
        self.count += 1
        beat = Heartbeat(
            pod=pod,
            instance=pod,
            epoch=epoch,
            count=self.count,
            period=period,
            time=self.now,
            released=released,
        )
        self.journal().beat(beat)

    def newcomer(self, pod: str = "b") -> HeartbeatWatch:
        return HeartbeatWatch(self.journal(), pod, lambda: self.now, period=1.0)

    def takes(self, newcomer: HeartbeatWatch) -> bool:
        return newcomer.look()[0]


@pytest.fixture
def shop(store: FileStore) -> Shop:
    return Shop(store)


def wait(store: FileStore, pod: str) -> History:
    journal = Journal(store, lambda: 0.0)
    watch = HeartbeatWatch(journal, pod, time.monotonic, period=1.0)
    return asyncio.run(wait_for_turn(watch, asyncio.to_thread))


def test_who_waits_for_a_store_that_was_emptied_ends_and_the_next_process_opens_it(
    store: FileStore, shop: Shop
) -> None:
    """Rule 23: it would wait for ever where another one has made the mark anew."""
    shutil.rmtree(store.root)
    FileStore(store.root).open()
    with pytest.raises(StoreEmptied, match="emptied and begun anew"):
        wait(store, "b")


def test_the_first_process_and_the_same_pod_begin_at_once(store: FileStore, shop: Shop) -> None:
    assert wait(store, "a").epoch == 0
    shop.take_over(1, "a")
    assert wait(store, "a").epoch == 1
    shop.beat("a", released=True)
    assert shop.takes(shop.newcomer("a"))


def test_a_newcomer_waits_while_the_heartbeat_goes_on(shop: Shop) -> None:
    shop.take_over(1, "a")
    newcomer = shop.newcomer()
    for _ in range(20):
        shop.beat("a")
        assert not shop.takes(newcomer)
        shop.now += T - 0.1
    assert not shop.takes(newcomer)
    shop.now += 0.2
    assert shop.takes(newcomer)


def test_an_entry_is_a_sign_of_life_too(shop: Shop) -> None:
    owner = shop.take_over(1, "a")
    newcomer = shop.newcomer()
    for _ in range(5):
        assert not shop.takes(newcomer)
        shop.now += T - 0.1
        owner.append(Begun(shard=0))
    assert not shop.takes(newcomer)


def test_what_the_owner_wrote_before_it_fell_silent_makes_nobody_wait_longer(shop: Shop) -> None:
    owner = shop.take_over(1, "a")
    shop.beat("a")
    newcomer = shop.newcomer()
    assert not shop.takes(newcomer)
    shop.now += 0.5
    owner.append(Begun(shard=0))
    shop.now += T - 0.1  # the newcomer has looked at the heartbeat alone, and reads the log now
    assert not shop.takes(newcomer)
    shop.now += 0.2
    assert shop.takes(newcomer)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are read of any store."""
    names, read = list[str](), FileStore.read

    def read_and_note(self: FileStore, name: str) -> bytearray:
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(FileStore, "read", read_and_note)
    return names


def test_while_the_heartbeat_goes_on_a_look_is_one_read(
    shop: Shop, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.take_over(1, "a")
    shop.beat("a")
    newcomer = shop.newcomer()
    assert not shop.takes(newcomer)
    asked.clear()
    monkeypatch.setattr(FileStore, "names", None)  # nothing is listed
    for _ in range(3):
        shop.now += 1.0
        shop.beat("a")
        assert not shop.takes(newcomer)
        shop.now += 1.0
        assert not shop.takes(newcomer)
    assert asked == ["heartbeat.json"] * 6


def test_a_newcomer_reads_the_log_while_the_owner_lives_and_has_little_to_read_at_its_turn(
    shop: Shop, asked: list[str]
) -> None:
    owner, newcomer = shop.take_over(1, "a"), shop.newcomer()
    for _ in range(int(4 * CATCH_UP_SECONDS)):
        shop.now += 1.0
        shop.beat("a")
        owner.append(Begun(shard=0))
        assert not shop.takes(newcomer)
    asked.clear()
    shop.now += T + 1.0
    assert shop.takes(newcomer)
    assert sum(name.startswith(LOG) for name in asked) <= CATCH_UP_SECONDS + 1


def test_a_newcomer_is_as_patient_as_the_owners_heartbeat_says(shop: Shop) -> None:
    shop.take_over(1, "a")
    shop.beat("a", period=7.0)
    newcomer = shop.newcomer()
    assert not shop.takes(newcomer)
    shop.now += 7.0 * T - 0.1
    assert not shop.takes(newcomer)
    shop.now += 0.1
    assert shop.takes(newcomer)


def test_who_ends_in_order_is_followed_at_once_and_an_older_goodbye_says_nothing(
    shop: Shop,
) -> None:
    shop.take_over(1, "a")
    shop.beat("a", released=True)
    assert shop.takes(shop.newcomer())
    shop.take_over(2, "c")
    assert not shop.takes(shop.newcomer())
    shop.beat("c", epoch=1, released=True)  # of an earlier term of the same process
    assert not shop.takes(shop.newcomer())


@pytest.mark.parametrize("snapshot", [False, True])
def test_each_takeover_of_the_last_minute_makes_a_newcomer_twice_as_patient(
    store: FileStore, shop: Shop, snapshot: bool
) -> None:
    for epoch, pod in enumerate("abab", start=1):
        owner = shop.take_over(epoch, pod)
        shop.now += 5.0
    if snapshot:  # which a new process begins with
        write(store, owner.snapshot_of(shop.journal().read()), shop.now)
    newcomer = shop.newcomer("a")
    shop.beat("b", epoch=4)
    assert not shop.takes(newcomer)
    shop.now += 8 * T - 0.1
    assert not shop.takes(newcomer)
    shop.now += 60.0
    shop.beat("b", epoch=4)
    assert not shop.takes(newcomer)
    shop.now += T
    assert shop.takes(newcomer)


def test_a_process_that_follows_another_one_of_its_pod_counts_too(shop: Shop) -> None:
    """Else two pods whose processes end again and again, on a busy machine, stay hasty."""
    for epoch, instance in enumerate(["a-1", "a-1", "a-2", "a-3"], start=1):
        one = shop.journal()
        one.read()
        one.append(TermBegun(epoch=epoch, pod="a", instance=instance))
    assert len(one.takeovers) == 2  # a process that begins a higher term follows nobody
    again = shop.journal()
    again.read()
    assert list(again.takeovers) == [1000.0, 1000.0]


def test_who_was_followed_waits_and_may_own_the_shard_again(shop: Shop) -> None:
    owner = shop.take_over(1, "a")
    assert not owner.is_deposed()
    shop.take_over(2, "b")
    assert owner.is_deposed()  # told at its next heartbeat
    newcomer = shop.newcomer("a")
    assert not shop.takes(newcomer)
    shop.now += 2 * T
    assert shop.takes(newcomer)
