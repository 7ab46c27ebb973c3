"""Which other rank is lost, from what its stream (lifeline.py) has brought; without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from atoll_protos.exits import ExitCode
from atoll_worker.errors import LearnerError, ToldToEndError

BEAT_SECONDS: Final = 1.0
END_SECONDS: Final = 10.0  # for the training thread to see a loss by itself
BEAT, LEFT, LEFT_EARLY = b".", b"!", b"?"  # early: its loop has ended before the job is final
TOLD = b"t"  # it was told to end, and will


@dataclass(slots=True, kw_only=True)
class Peers:
    """The ranks at the other ends of this rank's streams, but for those that have left in order.

    Times are seconds of one clock. `lost` says who is lost and how that was seen; the first counts.
    """

    silence_seconds_max: float
    heard: dict[int, float] = field(default_factory=dict)  # by rank: when it said something last
    left: list[int] = field(default_factory=list)  # who has left in order, but early
    lost: str = ""
    silent: bool = False  # who is lost may stand still with open connections
    told: bool = False  # who is lost was told to end, and has said so

    @property
    def end_seconds(self) -> float:
        """Seconds for training to see the loss: none if a stopped process holds its collective."""
        return 0.0 if self.silent else END_SECONDS

    def hear(self, rank: int, said: bytes, now: float) -> None:
        """What has come from a rank; nothing is the end of its stream."""
        if rank not in self.heard:
            return
        if LEFT in said:
            del self.heard[rank]
        elif LEFT_EARLY in said:
            del self.heard[rank]
            self.left.append(rank)
        elif TOLD in said:
            self.told = self.told or not self.lost
            self._lose(f"rank {rank} was told to end")
        elif said:
            self.heard[rank] = now
        else:
            self._lose(f"rank {rank} has ended")

    def look(self, now: float) -> None:
        """Call it when all has been read that had come: who has said nothing for too long?"""
        for rank, last in self.heard.items():
            if now - last > self.silence_seconds_max:
                self.silent = self.silent or not self.lost
                self._lose(
                    f"rank {rank} has said nothing for {self.silence_seconds_max:g} s: it is "
                    "stopped, or its host is gone"
                )

    def _lose(self, how: str) -> None:
        self.lost = self.lost or how


def left_words(left: Sequence[int]) -> str:
    """That these ranks have left early, for one that has not; empty if none has."""
    if not left:
        return ""
    first, more = min(left), f" and {len(left) - 1} more" if len(left) > 1 else ""
    return (
        f"atoll: rank {first}{more} left the Learner while this rank trains on; let every rank make"
        " the same steps, until learner.finished"
    )


def lost_error(lost: str, *, told: bool = False) -> LearnerError:
    """How the process of a rank ends that has lost another one (rule 30), perhaps `told` to end."""
    kind = ToldToEndError if told else LearnerError
    return kind(ExitCode.TRY_AGAIN, f"{lost}; start all ranks of this learner again")
