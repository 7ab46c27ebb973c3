"""A job of `atoll serve` from afar: copies of its files, its shards, its model, and its edits.

What reads a run folder reads the copy as well. The copy is locked as a run folder is by its run,
so it counts as one that runs, and with `follow` only as long as the server sends.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.folder import run_lock
from atoll_operator.local.progress.machines import MachinesFile, read_machines
from atoll_operator.machines.looking import kept
from atoll_operator.machines.server_link import (
    WHOSE,
    ServerLink,
    link_to,
    proved,
)
from atoll_operator.machines.sights import shows
from atoll_operator.machines.token import Token
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """One job at HOST:PORT, whose server is proved. All methods raise SpecError."""

    link: ServerLink
    tokens: list[Token]  # to be asked with in turn, until one is not refused

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
        return self._with_token(asked, lambda: self.link.change(asked))

    @contextmanager
    def _look(self, asked: pb.LookRequest) -> Iterator[Iterator[pb.LookReply]]:
        with ExitStack() as open_:

            def begun() -> Iterator[pb.LookReply]:
                replies = iter(open_.enter_context(self.link.look(asked)))
                return chain([*islice(replies, 1)], replies)

            yield self._with_token(asked, begun)

    def _with_token(self, asked: pb.LookRequest | pb.ChangeRequest, call: Callable[[], T]) -> T:
        """What comes of a call with the first token that is not refused, which is kept."""
        token = self.tokens[0]
        asked.token, asked.secret = token.name, token.secret
        try:
            found = call()
        except SpecError as error:
            if error.field != "--token" or len(self.tokens) == 1:
                raise
            del self.tokens[0]
            return self._with_token(asked, call)
        kept.keep(self.link.place, token)
        return found


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
        """Raises SpecError where it has not ended in order."""
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
        except (SpecError, OSError) as error:
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


def connect(place: str, given: str, variable: str = "") -> Served:
    """The job at HOST:PORT, by a token. Raises SpecError.

    Where none is given the one that is kept is asked for, and that of a variable where the server
    refuses it or none is kept. Only tokens of that server count.
    """
    if given:
        token = Token.parse(given)
        return Served(proved(place, token.digest), [token])
    link = link_to(place)
    others = Token.parse(variable) if variable else None
    tokens = [kept.kept_for(place, link.digest), others]
    found = [each for each in tokens if each is not None and each.digest == link.digest]
    if not found:
        more = f", and {Env.TOKEN} has that of another server" if others else ""
        problem = f"is missing: none is kept for {place}{more}"
        remedy = "on the server's machine `atoll tokens DIR --look` prints the whole line"
        raise SpecError("--token", problem, remedy)
    return Served(link, found)
