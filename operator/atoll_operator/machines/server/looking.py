"""What a token to look shows: files of the run folder, what shards say now, the model.

A stream has a thread and a place of its own; there are few, so that machines are never without a
thread. gRPC takes the next piece when the last one is on its way: who reads slowly holds up only
itself. Who has taken nothing for a while loses its place to another one, and so does who follows
and for whom nothing has come. A token that is revoked ends its streams.
"""

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.folder.log_files import endpoints_of, exporting, observer_in
from atoll_operator.local.folder.run_files import STATUS_FILE
from atoll_operator.local.progress.poller import ask
from atoll_operator.machines.server.file_sights import PIECE_BYTES, FileSight
from atoll_operator.machines.sights import FILES
from atoll_protos.errors import AwayError, SpecError

LOOKERS_MAX: Final = 8
EXPORTS_MAX: Final = 1  # each has a copy of the model on this machine's disk
STALLED_SECONDS: Final = 30.0
ALLOWED_SECONDS: Final = 1.0  # between two looks at whether a token still holds
FOLLOW_SECONDS: Final = 0.5
SHARDS_SECONDS: Final = 1.0  # shards are asked once in this time, for all who look

Check = Callable[[], object]  # raises SpecError where the caller may not look any more


@dataclass(slots=True, eq=False)
class Looker:
    """One open stream; `rests_since`: its reader is to take something, or nothing comes for it."""

    context: Any
    rests_since: float | None = None  # monotonic seconds


@dataclass(slots=True)
class Lookers:
    """So many streams at once; for several threads."""

    most: int
    _taken: list[Looker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def one(self, looker: Looker) -> Iterator[None]:
        """Raises AwayError where all are taken by callers that read."""
        with self._lock:
            if len(self._taken) >= self.most:
                self._free(time.monotonic())
            self._taken.append(looker)
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._taken.remove(looker)

    def _free(self, now: float) -> None:
        slowest = min(self._taken, key=lambda each: each.rests_since or now)
        if now - (slowest.rests_since or now) < STALLED_SECONDS:
            problem = f"{len(self._taken)} look at this at once, and more may not"
            raise AwayError("atoll", problem, "try again when one of them is ready")
        self._taken.remove(slowest)
        slowest.context.cancel()


@dataclass(slots=True, kw_only=True)
class Looking:
    """Of the job in a run folder."""

    out: Path
    places: Lookers = field(default_factory=lambda: Lookers(LOOKERS_MAX))
    exports: Lookers = field(default_factory=lambda: Lookers(EXPORTS_MAX))
    over: threading.Event = field(default_factory=threading.Event)  # nothing more will come
    _asked: tuple[float, list[pb.ShardAnswer]] = (float("-inf"), [])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def replies(self, asked: pb.LookRequest, context: Any, check: Check) -> Iterator[pb.LookReply]:
        """Raises SpecError, also in the middle."""
        checked_at, looker = time.monotonic(), Looker(context)
        with self.places.one(looker):
            for reply in self._seen(asked, looker):
                if time.monotonic() - checked_at >= ALLOWED_SECONDS:
                    check()
                    checked_at = time.monotonic()
                if reply is not None:
                    looker.rests_since = time.monotonic()
                    yield reply
                    looker.rests_since = None
                elif looker.rests_since is None:
                    looker.rests_since = time.monotonic()

    def _seen(self, asked: pb.LookRequest, looker: Looker) -> Iterator[pb.LookReply | None]:
        """None: there is nothing just now."""
        if asked.sight == pb.SIGHT_SHARDS:
            return self._shards(asked, looker.context)
        if asked.sight == pb.SIGHT_EXPORT:
            return self._model(looker)
        if asked.sight in FILES:
            return self._files(asked, looker.context)
        raise SpecError("atoll", "the server does not know what is asked", "install its version")

    def _files(self, asked: pb.LookRequest, context: Any) -> Iterator[pb.LookReply | None]:
        if asked.sight == pb.SIGHT_STATUS and not (self.out / STATUS_FILE).exists():
            raise AwayError("atoll", "the job has no status yet", "try again in some seconds")
        tail = asked.tail if asked.HasField("tail") else None
        files = FileSight(out=self.out, sight=asked.sight, tail=tail)
        files.check()
        context.set_compression(grpc.Compression.Gzip)
        yield from (pb.LookReply(file=piece) for piece in files.pieces())
        yield pb.LookReply(whole=True)
        last = not asked.follow
        while not last and context.is_active():
            last = self.over.wait(FOLLOW_SECONDS)  # seen first: what was written before it comes
            yield from (pb.LookReply(file=piece) for piece in files.pieces())
            yield None

    def _shards(self, asked: pb.LookRequest, context: Any) -> Iterator[pb.LookReply | None]:
        yield from (pb.LookReply(shard=each) for each in self._answers())
        yield from self._files(asked, context)

    def _answers(self) -> list[pb.ShardAnswer]:
        with self._lock:
            at, found = self._asked
            if time.monotonic() - at >= SHARDS_SECONDS:
                endpoints = endpoints_of(self.out)
                replies = ask(endpoints, observer_in(self.out))
                pairs = zip(endpoints, replies, strict=True)
                at = time.time()
                found = [pb.ShardAnswer(endpoint=x, reply=reply, at=at) for x, reply in pairs]
                self._asked = time.monotonic(), found
            return found

    def _model(self, looker: Looker) -> Iterator[pb.LookReply]:
        with (
            self.exports.one(looker),
            tempfile.TemporaryDirectory(prefix="atoll-export-") as folder,
            tempfile.TemporaryFile() as said,
            subprocess.Popen(
                exporting(self.out, "-"),
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, "TMPDIR": folder},  # one that is killed leaves nothing behind
            ) as process,
        ):
            assert process.stdout is not None
            try:
                if looker.context.add_callback(process.kill):
                    while data := process.stdout.read(PIECE_BYTES):
                        yield pb.LookReply(model=data)
                    process.wait()
            finally:
                process.kill()
            if process.returncode:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                problem = lines[-1] if lines else f"it ended with {process.returncode}"
                raise AwayError("atoll export", problem, "try again while the job trains")
