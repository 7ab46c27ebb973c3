"""A job of `atoll serve` from afar: copies of its files, its shards, its model, and its edits.

What reads a run folder reads the copy as well. The copy is locked as a run folder is by its run,
so it counts as one that runs, and with `follow` only as long as the server sends.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.folder import run_lock
from atoll_operator.local.progress.machines import MachinesFile, read_machines
from atoll_operator.machines.looking import kept
from atoll_operator.machines.server_link import (
    CHECK,
    WHOSE,
    ServerLink,
    UnreachableError,
    certificate_at,
    proved,
)
from atoll_operator.machines.sights import shows
from atoll_operator.machines.token import Token, digest_of
from atoll_protos.errors import SpecError


@dataclass(frozen=True, slots=True)
class Served:
    """One job at HOST:PORT, whose server is proved. All methods raise SpecError."""

    link: ServerLink
    token: Token

    @contextmanager
    def copy(self, of: str, *, follow: bool = False, tail: int | None = None) -> Iterator[Path]:
        """A folder with files of the run; with `follow` they grow until the job is over.

        `of`: status, logs or curves; `tail`: so many last lines of each log.
        """
        sight = f"SIGHT_{of.upper()}"
        asked = pb.LookRequest(sight=sight, follow=follow, tail=tail)
        with tempfile.TemporaryDirectory(prefix="atoll-look-") as name, ExitStack() as open_:
            folder, lock = Path(name), open_.enter_context(ExitStack())
            lock.enter_context(run_lock.running(folder))
            copy = Copy(folder, pb.Sight.Value(sight), lock)
            open_.callback(copy.wait)
            replies = open_.enter_context(self._look(asked))
            copy.begin(replies)
            if follow:
                copy.follow(replies)
            yield folder
            copy.check()

    def shards(self) -> tuple[list[pb.ShardAnswer], MachinesFile | None]:
        """What they say of themselves, and the machines as the server sees them."""
        asked = pb.LookRequest(sight=pb.SIGHT_SHARDS)
        with (
            tempfile.TemporaryDirectory(prefix="atoll-look-") as name,
            self._look(asked) as replies,
        ):
            copy = Copy(Path(name), pb.SIGHT_SHARDS, ExitStack())
            copy.begin(replies)
            seen = read_machines(copy.folder)
        return copy.shards, seen

    def model(self) -> Iterator[bytes]:
        """The pieces of a tar with the model as it is now."""
        with self._look(pb.LookRequest(sight=pb.SIGHT_EXPORT)) as replies:
            for each in replies:
                yield each.model

    def edit(
        self, learners: Mapping[str, int], steps: int | None, tokens: int | None
    ) -> Sequence[str]:
        """Returns what is another now, in words; None and no region: as it is."""
        return self._change(
            pb.ChangeRequest(
                decision=pb.DECISION_EDIT, learners=learners, steps=steps, tokens=tokens
            )
        )

    def suspend(self, wanted: bool) -> None:
        decision = pb.DECISION_SUSPEND if wanted else pb.DECISION_RESUME
        self._change(pb.ChangeRequest(decision=decision))

    def stop(self) -> Sequence[str]:
        return self._change(pb.ChangeRequest(decision=pb.DECISION_STOP))

    def ask_checkpoint(self, step: int) -> None:
        """Of this step, or of a later one."""
        decision = pb.DECISION_CHECKPOINT
        self._change(pb.ChangeRequest(decision=decision, checkpoint_step=step))

    def _change(self, asked: pb.ChangeRequest) -> Sequence[str]:
        asked.token, asked.secret = self.token.name, self.token.secret
        with _reached(self.link.place):
            lines = self.link.change(asked)
        kept.keep(self.link.place, self.token)
        return lines

    @contextmanager
    def _look(self, asked: pb.LookRequest) -> Iterator[Iterator[pb.LookReply]]:
        asked.token, asked.secret = self.token.name, self.token.secret
        with _reached(self.link.place), self.link.look(asked) as replies:
            yield self._kept(iter(replies))

    def _kept(self, replies: Iterator[pb.LookReply]) -> Iterator[pb.LookReply]:
        """The token is kept once it has shown something."""
        for number, each in enumerate(replies):
            if not number:
                kept.keep(self.link.place, self.token)
            yield each


@dataclass(slots=True)
class Copy:
    """The files of a sight as they come. `lock` is held while more may come."""

    folder: Path
    sight: int
    lock: ExitStack
    shards: list[pb.ShardAnswer] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _ended: Exception | None = None

    def begin(self, replies: Iterator[pb.LookReply]) -> None:
        """All that there is."""
        for each in replies:
            if each.whole:
                return
            if each.HasField("shard"):
                self.shards.append(each.shard)
            else:
                self._write(each.file)

    def follow(self, replies: Iterator[pb.LookReply]) -> None:
        """What comes later, from now on."""
        self._thread = threading.Thread(target=self._rest, args=(replies,), name="look")
        self._thread.start()

    def check(self) -> None:
        """Raises UnreachableError and SpecError where it has not ended in order."""
        if self._ended is not None:
            raise self._ended

    def wait(self) -> None:
        """For the thread, when the call has ended."""
        if self._thread is not None:
            self._thread.join()

    def _rest(self, replies: Iterator[pb.LookReply]) -> None:
        try:
            for each in replies:
                self._write(each.file)
        except (UnreachableError, SpecError, OSError) as error:
            self._ended = error
        finally:
            self.lock.close()

    def _write(self, piece: pb.FilePiece) -> None:
        if not shows(self.sight, piece.name):
            raise SpecError("atoll", f"the server has sent {piece.name!r}, unasked", WHOSE)
        path = self.folder / piece.name
        path.parent.mkdir(exist_ok=True)
        with path.open("wb" if piece.begins else "ab") as file:
            file.write(piece.data)
        changed = time.time() - piece.age_seconds
        os.utime(path, (changed, changed))


def connect(place: str, text: str) -> Served:
    """The job at HOST:PORT, by a token or the one that is kept. Raises SpecError."""
    token = Token.parse(text) if text else kept.kept(place)
    if token is None:
        token = kept.kept_for(digest_of(certificate_at(place)))
    if token is None:
        problem = f"is missing, and none is kept for {place}"
        remedy = "on the server's machine `atoll tokens DIR --look` prints the whole line"
        raise SpecError("--token", problem, remedy)
    return Served(proved(place, token.digest), token)


@contextmanager
def _reached(place: str) -> Iterator[None]:
    try:
        yield
    except UnreachableError as error:
        raise SpecError(place, str(error).removeprefix(f"{place} "), CHECK) from error
