"""An export of a job that trains, by `python -m` of this module (rule 36).

    each shard   Export --> run, tick and model, then a file in pieces --> parts/received-<n>
                 all of them --> storage/export.assemble in a hidden folder, then renamed

The tick in the index is the lowest of the shards' when they began to answer.
"""

import argparse
import asyncio
import os
import secrets
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import logs
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import from_model
from atoll_protos.job.run_file import RunFile
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.network import channels
from atoll_protos.network.addresses import endpoints_of
from atoll_protos.network.channels import PLAIN_TEXT, Folder, control_options, details_of
from atoll_protos.network.credentials import OutOfDateError
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from atoll_syncer.storage.export import PARTS, Export, ExportPart
from atoll_syncer.storage.files import StoreError, storage_errors, verify

ANSWER_SECONDS: Final = 30.0  # of a shard that says or sends nothing
STANDARD_OUTPUT: Final = "-"
HIDDEN: Final = ".{name}.{digits}.tmp"  # until an export is whole


class ExportError(Exception):
    """No export could be taken: the reason, and what to do."""


@dataclass(frozen=True, slots=True)
class ShardAddresses:
    """How the shards are reached: host:port of each, and this process's credentials."""

    endpoints: tuple[str, ...]
    folder: Folder = PLAIN_TEXT


@dataclass(slots=True)
class Received:
    """What one shard has sent, in a file of a folder that goes when the export is there."""

    folder: Path
    shard: int
    first: pb.ExportPiece = field(default_factory=pb.ExportPiece)
    digest: str = ""  # of the whole file

    @property
    def path(self) -> Path:
        return self.folder / PARTS / f"received-{self.shard}"

    def take(self, piece: pb.ExportPiece) -> None:
        """Raise StoreCorrupt, StoreFull and StoreUnavailable."""
        path = self.path
        with storage_errors(path):
            if piece.HasField("model"):
                self.first = piece
                path.parent.mkdir(parents=True, exist_ok=True)
                return
            with path.open("ab") as file:
                file.write(piece.data)
        if piece.digest:
            verify(path, piece.digest)
            self.digest = piece.digest


async def receive(run_file: RunFile, reach: ShardAddresses, shard: int, target: Received) -> None:
    """All that a shard has for an export. Raises ExportError and StoreError."""
    endpoint, request = reach.endpoints[shard], pb.ExportRequest(run_hash=run_file.hash)
    try:
        credentials = reach.folder.read()
        async with channels.open_channel(endpoint, control_options(), credentials) as channel:
            call = SyncerStub(channel).Export(request, wait_for_ready=True)
            while True:
                async with asyncio.timeout(ANSWER_SECONDS):
                    piece = await call.read()
                if not isinstance(piece, pb.ExportPiece):  # the end
                    return
                await asyncio.to_thread(target.take, piece)
    except (SpecError, OutOfDateError) as error:
        raise ExportError(str(error)) from error
    except (TimeoutError, grpc.aio.AioRpcError) as error:
        why = str(error) or "it does not answer"
        if isinstance(error, grpc.aio.AioRpcError):
            why = f"{error.code().name}: {details_of(error)}"
        problem = f"shard {shard} at {endpoint}: {why}"
        raise ExportError(f"{problem}; try again while the job trains") from error


async def take(run_file: RunFile, reach: ShardAddresses, out: Path) -> int:
    """Write an export of the running job into the folder `out`, which appears whole.

    Returns the tick. Raises ExportError, and StoreError where the folder cannot be written.
    """
    hidden = out.with_name(HIDDEN.format(name=out.name, digits=secrets.token_hex(4)))
    shards = [Received(hidden, shard) for shard in range(len(reach.endpoints))]
    try:
        await asyncio.gather(*(receive(run_file, reach, each.shard, each) for each in shards))
        tick = min(each.first.tick for each in shards)
        await asyncio.to_thread(assemble, run_file, shards, tick)
        await asyncio.to_thread(_appear, hidden, out)
    finally:
        await asyncio.to_thread(shutil.rmtree, hidden, ignore_errors=True)
    return tick


def assemble(run_file: RunFile, shards: Sequence[Received], tick: int) -> None:
    """Make the model's files of what came. Raises StoreError."""
    registrar = shards[REGISTRAR_SHARD]
    layout = from_model(registrar.first.model, run_file.layout)
    parts = [  # absolute: else they begin in the export
        ExportPart(file=str(each.path.absolute()), digest=each.digest) for each in shards
    ]
    Export(registrar.folder).assemble(registrar.first.run, layout, parts, tick=tick)
    shutil.rmtree(registrar.folder / PARTS, ignore_errors=True)


def _appear(hidden: Path, out: Path) -> None:
    """Give the folder its name, in place of what had it: an empty one, or an older run's."""
    if out.exists():
        shutil.rmtree(out)
    hidden.rename(out)


def _send(model: Path) -> None:
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        tar.add(model, ".")
    sys.stdout.buffer.flush()


def main() -> None:
    """Take one export; the reason of a failure is one line."""
    logs.configure()
    parser = argparse.ArgumentParser(prog="atoll_syncer.edges.exporting", description=__doc__)
    parser.add_argument("--run-file", default=os.environ.get(Env.RUN_FILE, ""))
    parser.add_argument("--endpoints", default=os.environ.get(Env.ENDPOINTS, ""))
    parser.add_argument("--tls-dir", default=os.environ.get(Env.TLS_DIR, ""))
    parser.add_argument("--out", required=True, help="a new folder, or -: a tar to the output")
    flags = parser.parse_args()
    out = Path(flags.out)
    try:
        run_file = RunFile.from_json(Path(flags.run_file).read_text(encoding="utf-8"))
        reach = ShardAddresses(endpoints_of(flags.endpoints), Folder(path=flags.tls_dir))
        if flags.out == STANDARD_OUTPUT:
            with tempfile.TemporaryDirectory(prefix="atoll-export-") as folder:
                tick = asyncio.run(take(run_file, reach, Path(folder) / "model"))
                _send(Path(folder) / "model")
            sys.stderr.write(f"the model at tick {tick}\n")
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
