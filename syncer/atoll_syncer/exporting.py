"""An export of a job that trains: `python -m atoll_syncer.exporting`, and on a schedule (rule 36).

It joins every shard as an observer that has no model of its own, so nothing of the training waits
for it or changes by it:

    shard 0   Welcome with the model's tensors, the tick and how many parts the companion has
    each      Publish of every slice, as learners hold it --> parts/<run>-shard-<n>.safetensors
    shard 0   the companion's parts
              all of it --> storage/export.assemble in a hidden folder, then renamed

Slices are published at different times. In the export each is the newest that its shard had, whole
and from one version; the tick in the index is the lowest of the shards' when they welcomed us. A
slice is written as soon as it is there, so memory holds at most one slice of each shard.

The registrar takes one every `spec.export.everySteps` ticks into FOLDER/step-N (`keep_taking`), and
the last KEPT of them stay. What fails is logged, and the next one is due as planned.
"""

import argparse
import asyncio
import os
import re
import secrets
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import structlog
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import channels, logs, tensors
from atoll_protos.channels import (
    BULK_METHOD,
    PLAIN_TEXT,
    SECRET_METADATA,
    SESSION_METADATA,
    Folder,
    bulk_options,
    control_options,
)
from atoll_protos.codecs import base_encoding
from atoll_protos.companion import PART_BYTES, PARTS
from atoll_protos.credentials import OutOfDateError
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.frames import Assembler, FrameError, Whole
from atoll_protos.layout import Layout, from_model
from atoll_protos.names import PROTOCOL, REGISTRAR_SHARD
from atoll_protos.run import RunFile
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from atoll_syncer.storage import export
from atoll_syncer.storage.export import PartFile
from atoll_syncer.storage.files import READ_BYTES
from atoll_syncer.storage.store import StoreError

ANSWER_SECONDS: Final = 30.0  # of a shard that says or sends nothing
LOOK_SECONDS: Final = 1.0  # at the tick, for the next one that is due; seconds late is no harm
KEPT: Final = 3
STANDARD_OUTPUT: Final = "-"
HIDDEN: Final = ".{name}.{digits}.tmp"  # until an export is whole
STEP: Final = re.compile(r"step-[0-9]+")

log = structlog.get_logger()


class ExportError(Exception):
    """No export could be taken: the reason, and what to do."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How the shards are reached: host:port of each, and this process's credentials."""

    endpoints: tuple[str, ...]
    folder: Folder = PLAIN_TEXT


@dataclass(slots=True)
class Reader:
    """One shard, as an observer sees it."""

    shard: int
    endpoint: str
    folder: Folder
    stack: AsyncExitStack
    session: Any = None
    welcome: pb.Welcome = field(default_factory=pb.Welcome)

    async def join(self, run_file: RunFile) -> None:
        """Until its Welcome. Raises ExportError."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                channel = await self._channel(control_options())
                self.session = SyncerStub(channel).Session()
                await self.session.write(pb.ToShard(join=self._join(run_file)))
                answer = await self.session.read()
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            raise self._away(error) from error
        if answer is grpc.aio.EOF or not answer.HasField("welcome"):
            end = answer.end if answer is not grpc.aio.EOF else pb.End(reason="it hung up")
            raise ExportError(f"shard {self.shard}: {end.reason}; {end.remedy or 'try again'}")
        self.welcome = answer.welcome
        if not self.welcome.heads:
            problem = f"shard {self.shard} has no values yet"
            raise ExportError(f"{problem}; try again once the job trains")

    async def read(self, layout: Layout, encoding: pb.Encoding, target: "Target") -> None:
        """Every slice once, and the companion. Raises ExportError."""
        control = asyncio.create_task(self._until_end())
        bulk = asyncio.create_task(self._bulk(layout, encoding, target))
        try:
            await asyncio.wait({control, bulk}, return_when=asyncio.FIRST_COMPLETED)
            if not bulk.done():
                raise ExportError(f"shard {self.shard}: {control.result()}; try again")
            bulk.result()
        except (TimeoutError, FrameError, grpc.aio.AioRpcError) as error:
            raise self._away(error) from error
        finally:
            control.cancel()
            bulk.cancel()

    def _join(self, run_file: RunFile) -> pb.Join:
        return pb.Join(
            protocol=PROTOCOL,
            run_hash=run_file.hash,
            instance=f"export-{secrets.token_hex(8)}",
            observer=True,
            has_companion=self.shard == REGISTRAR_SHARD,
        )

    async def _channel(self, options: Any) -> Any:
        try:
            credentials = self.folder.read()
        except (SpecError, OutOfDateError) as error:
            raise ExportError(str(error)) from error
        channel = channels.open_channel(self.endpoint, options, credentials)
        await self.stack.enter_async_context(channel)
        await channel.channel_ready()
        return channel

    async def _until_end(self) -> str:
        """Why the shard ends the session."""
        while (message := await self.session.read()) is not grpc.aio.EOF:
            if message.HasField("end"):
                return str(message.end.reason)
        return "it hung up"

    async def _bulk(self, layout: Layout, encoding: pb.Encoding, target: "Target") -> None:
        lacking = {owned.fragment for owned in layout.shard_slices(self.shard)}
        parts = self.welcome.companion_parts

        def admit(head: pb.Transfer) -> int | None:
            if head.HasField("companion"):
                return head.byte_count if parts and 0 < head.byte_count <= PART_BYTES else None
            fragment = head.publish.version.slice
            if not head.HasField("publish") or fragment >= layout.fragments:
                return None
            if head.encoding not in (encoding, pb.F32):  # F32: the last version of its slice
                return None
            return layout.slice(self.shard, fragment).form.byte_count(head.encoding)

        async with asyncio.timeout(ANSWER_SECONDS):
            channel = await self._channel(bulk_options())
        method: Any = channel.stream_stream(BULK_METHOD)
        session = (SESSION_METADATA, str(self.welcome.session))
        call = method(metadata=(session, (SECRET_METADATA, self.welcome.secret)))
        assembler = Assembler(admit)
        while lacking or parts:
            async with asyncio.timeout(ANSWER_SECONDS):
                frame = await call.read()
            if frame is grpc.aio.EOF:
                raise FrameError("the stream has ended")
            whole = assembler.feed(frame)
            if whole is None:
                continue
            if whole.head.HasField("companion"):
                parts -= 1
                await asyncio.to_thread(target.add_part, whole)
            elif whole.head.publish.version.slice in lacking:
                lacking.discard(whole.head.publish.version.slice)
                await asyncio.to_thread(target.add_slice, self.shard, whole)

    def _away(self, error: BaseException) -> ExportError:
        why = str(error) or "it does not answer"
        if isinstance(error, grpc.aio.AioRpcError):
            why = f"{error.code().name}: {error.details()}"
        return ExportError(f"shard {self.shard} at {self.endpoint}: {why}; is the job running?")


class Target:
    """The files of an export on its way."""

    def __init__(self, folder: Path, run: str, layout: Layout, encoding: pb.Encoding) -> None:
        self.folder, self.run, self.layout = folder, run, layout
        self.shards = [
            PartFile(folder, run, shard, layout, encoding) for shard in range(layout.shards)
        ]
        self.received = [folder / PARTS / f"{run}-received-{n}" for n in (0, 1)]

    def add_slice(self, shard: int, whole: Whole) -> None:
        """The values of a slice are there."""
        fragment = whole.head.publish.version.slice
        form = self.layout.slice(shard, fragment).form
        base = tensors.packed(whole.payload, whole.head.encoding, form)
        values = torch.cat((base.exact, base.coded.float())) if form.exact else base.coded
        self.shards[shard].write(fragment, values)

    def add_part(self, whole: Whole) -> None:
        """The next part of a companion is there."""
        with self.received[whole.head.companion.changed].open("ab") as file:
            file.write(whole.payload)

    def finish(self, tick: int) -> None:
        """Assemble. Raises StoreError."""
        parts = [each.done() for each in self.shards]
        companion = [_chunks(path) for path in self.received if path.exists()]
        export.assemble(self.folder, self.run, self.layout, parts, companion, tick=tick)
        for path in self.received:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            (self.folder / PARTS).rmdir()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            yield data


async def take(run_file: RunFile, reach: Reach, out: Path) -> int:
    """Write an export of the running job into the folder `out`, which appears whole.

    Returns the tick. Raises ExportError, and StoreError where the folder cannot be written.
    """
    hidden = out.with_name(HIDDEN.format(name=out.name, digits=secrets.token_hex(4)))
    try:
        async with AsyncExitStack() as stack:
            readers = [
                Reader(shard, endpoint, reach.folder, stack)
                for shard, endpoint in enumerate(reach.endpoints)
            ]
            await asyncio.gather(*(reader.join(run_file) for reader in readers))
            welcome = readers[REGISTRAR_SHARD].welcome
            layout = from_model(welcome.model, run_file.layout)
            encoding = base_encoding(run_file.sync.wire_down)
            target = await asyncio.to_thread(Target, hidden, welcome.run, layout, encoding)
            await asyncio.gather(*(each.read(layout, encoding, target) for each in readers))
            tick = min(reader.welcome.tick for reader in readers)
        await asyncio.to_thread(target.finish, tick)
        await asyncio.to_thread(_appear, hidden, out)
    finally:
        await asyncio.to_thread(shutil.rmtree, hidden, ignore_errors=True)
    return tick


def _appear(hidden: Path, out: Path) -> None:
    """Give the folder its name, in place of what had it: an empty one, or an older run's."""
    if out.exists():
        shutil.rmtree(out)
    hidden.rename(out)


async def keep_taking(
    run_file: RunFile,
    reach: Reach,
    folder: Path,
    clock: Callable[[], tuple[int, int | None]],
) -> None:
    """Take an export whenever the tick passes a multiple of the run file's `export_every`.

    `clock` tells the tick, and the job's present length in ticks, if it has one.
    """
    every = run_file.export_every
    assert every is not None, "no schedule"
    await asyncio.to_thread(_remove_half_written, folder)
    now = clock()[0] // every * every
    tried = now if now in _steps(folder) else 0  # a process before this one has taken it
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        tick, end = clock()
        due = tick // every * every
        if due <= tried or (end is not None and due >= end):
            continue
        tried = due
        try:
            seen = await take(run_file, reach, folder / f"step-{due}")
        except (ExportError, StoreError, OSError) as error:
            log.warning("no export was taken", step=due, reason=str(error))
        else:
            log.info("an export was taken", step=due, tick=seen)
            await asyncio.to_thread(_remove_old, folder)


def _steps(folder: Path) -> list[int]:
    """The steps of which there is an export, the latest last: an older run's may be higher."""
    folders = [path for path in folder.glob("step-*") if STEP.fullmatch(path.name)]
    folders.sort(key=lambda path: path.stat().st_mtime_ns)
    return [int(path.name.removeprefix("step-")) for path in folders]


def _remove_half_written(folder: Path) -> None:
    """What a process has left that was killed."""
    for left in folder.glob(HIDDEN.format(name="step-*", digits="*")):
        shutil.rmtree(left, ignore_errors=True)


def _remove_old(folder: Path) -> None:
    for step in _steps(folder)[:-KEPT]:
        shutil.rmtree(folder / f"step-{step}", ignore_errors=True)


def _send(run_file: RunFile, reach: Reach) -> None:
    """Write an export to the standard output as a tar, by way of a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="atoll-export-") as folder:
        model = Path(folder) / "model"
        tick = asyncio.run(take(run_file, reach, model))
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
            tar.add(model, ".")
        sys.stdout.buffer.flush()
    sys.stderr.write(f"the model at tick {tick}\n")


def main() -> None:
    """Take one export; the reason of a failure is one line."""
    logs.configure()
    parser = argparse.ArgumentParser(prog="atoll_syncer.exporting", description=__doc__)
    parser.add_argument("--run-file", default=os.environ.get(Env.RUN_FILE, ""))
    parser.add_argument("--endpoints", default=os.environ.get(Env.ENDPOINTS, ""))
    parser.add_argument("--tls-dir", default=os.environ.get(Env.TLS_DIR, ""))
    parser.add_argument("--out", required=True, help="a new folder, or -: a tar to the output")
    flags = parser.parse_args()
    out = Path(flags.out)
    try:
        run_file = RunFile.from_json(Path(flags.run_file).read_text(encoding="utf-8"))
        reach = Reach(tuple(flags.endpoints.split(",")), Folder(path=flags.tls_dir))
        if flags.out == STANDARD_OUTPUT:
            _send(run_file, reach)
            return
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise SpecError("--out", f"{out} is not empty", "give a new folder")
        tick = asyncio.run(take(run_file, reach, out))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(ExitCode.BAD_INPUT)
    except (ExportError, StoreError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(ExitCode.TRY_AGAIN)
    sys.stdout.write(f"{out}: the model at tick {tick}\n")


if __name__ == "__main__":
    main()
