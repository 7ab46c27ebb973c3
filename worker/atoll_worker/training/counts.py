"""What a learner counts: its steps, their tokens, where its data goes on, and the time they take.

The counts of one opening begin at 0; only the cursor goes on from the slot's last learner.
"""

import math
import operator
import time
from dataclasses import dataclass, field

from atoll_protos.errors import SpecError
from atoll_worker.link.messages import Boundary, JobLength
from atoll_worker.training.boundary import BoundaryWork
from atoll_worker.training.data_state import DataState, KeptDataState


@dataclass(slots=True)
class Counts:
    """The counts of one opening of a Learner."""

    own_steps: int = 0
    tokens: int = 0
    cursor: int = 0
    loss: float = math.nan  # the newest that is known
    kept: KeptDataState = field(default_factory=KeptDataState)  # the data state of the newest step
    left_at: float = 0.0  # when the last step() returned, monotonic
    blocked_seconds: float = 0.0  # how long the last step() took

    def checked(self, tokens: int, cursor: int | None, state: DataState | None) -> tuple[int, int]:
        """The arguments of step() as plain integers; SpecError if they are not whole or go back."""
        try:
            tokens = operator.index(tokens)
            cursor = self.cursor + 1 if cursor is None else operator.index(cursor)
        except TypeError as error:
            raise SpecError(
                "step", f"{error}", "give tokens and cursor as whole numbers"
            ) from error
        if tokens < 1:
            raise SpecError("tokens", f"is {tokens}", "give the tokens trained since the last step")
        if cursor < self.cursor:
            raise SpecError("cursor", f"went from {self.cursor} back to {cursor}", "let it grow")
        if state is not None and cursor == self.cursor:
            remedy = "let it grow with every step: it says which state is the newest"
            raise SpecError("cursor", f"stays at {cursor} in a step with a state", remedy)
        return tokens, cursor

    def given(
        self, tokens: int, cursor: int | None, state: DataState | None, *, is_head: bool
    ) -> tuple[int, int]:
        """Tokens and the next cursor; on other ranks a guess until the head says them (rule 35)."""
        if is_head:
            tokens, cursor = self.checked(tokens, cursor, state)
        else:
            tokens, cursor = 1, self.cursor + 1
        self.kept.give(state)
        return tokens, cursor

    def count(self, tokens: int, cursor: int) -> None:
        self.own_steps += 1
        self.tokens += tokens
        self.cursor = cursor
        self.kept.try_once()

    def heard(self, tokens: int, cursor: int) -> None:
        self.tokens, self.cursor = tokens, cursor

    def state(self, work: BoundaryWork) -> bytes | None:
        return self.kept.take() if work.captured else None

    def boundary(
        self,
        work: BoundaryWork,
        state: bytes | None,
        tokens: int = 0,
        step_seconds: float | None = None,
    ) -> Boundary:
        """For a step, or without `step_seconds` for more work at the same boundary."""
        return Boundary(
            own_steps=self.own_steps,
            tokens=tokens,
            loss=self.loss,
            step_seconds=step_seconds or 0.0,
            blocked_seconds=0.0 if step_seconds is None else self.blocked_seconds,
            cursor=self.cursor,
            data_state=state,
            adopted=tuple(work.adopted),
            captured=tuple(work.captured),
            again=step_seconds is None,
        )

    def leave(self) -> None:
        self.left_at = time.monotonic()

    def progress(self, tick: int, length: JobLength, learners: int) -> float:
        """0.0 to 1.0; estimated, by this slot's tokens per step, where the length is in tokens."""
        ticks = length.steps
        if ticks is None and length.tokens is not None and self.tokens:
            tokens_per_tick = self.tokens / self.own_steps * learners
            ticks = max(1, math.ceil(length.tokens / tokens_per_tick))
        return min(1.0, tick / ticks) if ticks else 0.0
