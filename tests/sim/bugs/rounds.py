"""Bugs in the clock and the rounds: who is called, and when a round closes (rules 8 to 12)."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import schedule
from atoll_protos.frames import Assembler, Frame, Whole
from atoll_syncer.model.clock import Clock
from atoll_syncer.model.effects import Effect
from atoll_syncer.model.round import Round, decide
from atoll_syncer.model.state import Standing, State
from atoll_syncer.rules import offers, rounds, sessions
from atoll_syncer.rules.shard import Shard
from atoll_worker.transport.sending import Sending

Patch = pytest.MonkeyPatch


def every_step_of_anybody_ticks(patch: Patch) -> None:
    """Rule 8."""

    def advance(self: Clock, slot: str, steps: int) -> None:
        self.positions = {name: at + steps for name, at in self.positions.items()}
        self.ahead = None

    patch.setattr(Clock, "advance", advance)


def a_clock_that_forgets_its_log(patch: Patch) -> None:
    """Rule 8."""
    init = Shard.__init__

    def forgetful(self: Shard, **arguments: Any) -> None:
        init(self, **arguments)
        self.state.clock.tick = self.state.clock.drawn_at = 0

    patch.setattr(Shard, "__init__", forgetful)
    patch.setattr(Clock, "raise_to", lambda self, tick: None)


def offers_without_a_call(patch: Patch) -> None:
    """Rule 10."""
    send_offer = Sending.offer

    def twice(self: Sending, shard: int, offer: pb.Offer) -> None:
        send_offer(self, shard, offer)
        send_offer(self, shard, offer)

    patch.setattr(Sending, "offer", twice)
    patch.setattr(offers, "objection", lambda state, sender, offer: "")


def calls_to_every_slot_with_a_session(patch: Patch) -> None:
    """Rule 10."""
    patch.setattr(offers, "usable", lambda state, slot, each, now: slot.session is not None)


def a_quorum_of_one_less(patch: Patch) -> None:
    """Rule 11."""
    standing = State.standing

    def less(self: State, now: float) -> Standing:
        real = standing(self, now)
        return replace(real, quorum=max(1, real.quorum - 1))

    patch.setattr(State, "standing", less)


def offers_that_die_with_their_session(patch: Patch) -> None:
    """Rule 11."""
    close = sessions.closed

    def closed(state: State, session: int) -> list[Effect]:
        slot = state.sessions.open[session].slot
        effects: list[Effect] = []
        for each in state.rounds.open.values():
            if each.closed_at is None and slot in each.complete:
                effects.append(rounds.drop(each.slice, each.complete.pop(slot)))
        return [*effects, *close(state, session)]

    patch.setattr(sessions, "closed", closed)


def offers_in_the_order_of_arrival(patch: Patch) -> None:
    """Rule 12."""
    patch.setattr(Round, "participants", property(lambda self: tuple(self.complete.values())))


def offers_that_say_more_than_they_hold(patch: Patch) -> None:
    """Rule 12."""
    send_offer = Sending.offer

    def boast(self: Sending, shard: int, offer: pb.Offer) -> None:
        offer.capture += 1
        offer.counters.steps += 1
        send_offer(self, shard, offer)

    patch.setattr(Sending, "offer", boast)


def damage_that_nobody_notices(patch: Patch) -> None:
    """Rule 12: what a trailer says of the values is believed."""
    finish = Assembler._finish

    def trusting(self: Assembler, frame: Frame) -> Whole:
        said = pb.Trailer.FromString(bytes(frame.payload)).checksum
        digest: Any = SimpleNamespace(intdigest=lambda: said)
        self._digest = digest
        return finish(self, frame)

    patch.setattr(Assembler, "_finish", trusting)


def calls_that_outlive_their_session(patch: Patch) -> None:
    """Rule 11: a Call that died with its session is made again."""
    patch.setattr(rounds, "session_closed", lambda state, slot: None)


def due_ticks_that_start_nothing_at_times(patch: Patch) -> None:
    """Rule 9."""
    starts = schedule.starts

    def few(sync: Any, tick: int, started: Any) -> list[tuple[int, int]]:
        return [(fragment, due) for fragment, due in starts(sync, tick, started) if tick - due > 2]

    patch.setattr(schedule, "starts", few)


def a_grace_of_many_steps(patch: Patch) -> None:
    """Rule 11."""
    standing = State.standing

    def long(self: State, now: float) -> Standing:
        return replace(standing(self, now), grace_seconds=9.0)

    patch.setattr(State, "standing", long)


def a_grace_that_is_cut_short(patch: Patch) -> None:
    """Rule 11."""
    is_over = Round.is_over

    def hasty(each: Round, *, awaited: Any, quorum: int, now: float) -> Any:
        return decide(each, awaited=awaited, quorum=quorum, now=now + 0.3)

    patch.setattr(rounds, "decide", hasty)
    patch.setattr(Round, "is_over", lambda self, now: is_over(self, now + 0.3))


def offers_that_never_leave(patch: Patch) -> None:
    """Rule 11: the slice stands still while its quorum is alive."""
    send_offer = Sending.offer

    def some(self: Sending, shard: int, offer: pb.Offer) -> None:
        if offer.slice > 0 or offer.base == 0:
            send_offer(self, shard, offer)

    patch.setattr(Sending, "offer", some)


def a_clock_that_counts_every_other_step(patch: Patch) -> None:
    """Rule 8."""
    advance = Clock.advance
    count = 0

    def half(self: Clock, slot: str, steps: int) -> None:
        nonlocal count
        count += 1
        advance(self, slot, steps if count % 2 else 0)

    patch.setattr(Clock, "advance", half)
