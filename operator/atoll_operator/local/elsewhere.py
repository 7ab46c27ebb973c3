"""Learners of a job on other machines, as the run on this one sees them; `atoll run` has none.

`atoll serve` has some: `atoll_operator.machines.server.serving` fills in what is neutral here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from atoll_operator.api.job.spec import Job
from atoll_operator.local.planning.process_plan import Planned
from atoll_operator.local.progress.local_status import RunSnapshot
from atoll_operator.local.progress.machines import ShownMachine
from atoll_operator.sizing.prices import FREE, Prices
from atoll_protos.job.expected import Expected


class Elsewhere:
    """None, and shards on the loopback interface in plain text."""

    endpoints: Sequence[str] = ()  # of the shards, for processes here; empty: any free ports
    prices: Prices = FREE  # of bytes that leave a region
    observer: str = ""  # folder of the credentials with which the run looks at its shards

    def here(self, job: Job) -> Job:
        """The job with the regions whose learners are processes of this machine."""
        return job

    def through(self, planned: list[Planned]) -> list[Planned]:
        """The processes as they have to be started."""
        return planned

    def listed(self, slots: Expected) -> Expected:
        """The slots file, with the machines that have entered."""
        return slots

    @contextmanager
    def open(self, say: Callable[[str], None]) -> Iterator[None]:
        """Machines may enter inside."""
        del say
        yield

    def invitation(self) -> str:
        """How machines enter, in words; empty: none can."""
        return ""

    def edited(self, job: Job) -> None:
        """The job is another one now: its length, or its learners."""

    def tell(self, seen: RunSnapshot, *, final: bool, complete: bool) -> None:
        """What a pass has found out."""

    def machines(self) -> Sequence[ShownMachine]:
        """As they are seen now."""
        return ()

    def leaving(self, seen: RunSnapshot) -> bool:
        """Whether learners of a complete job still take its last values."""
        del seen
        return False

    def failed(self, why: str) -> None:
        """The job has failed."""


NONE = Elsewhere()
