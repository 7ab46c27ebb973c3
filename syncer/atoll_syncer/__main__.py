"""`atoll-syncer`: serves one shard; flags default to the environment."""

import argparse
import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from atoll_protos import allocator, logs
from atoll_protos.environment import Env, default
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.job.run_file import NOBODY, Expected, RunFile
from atoll_protos.job.schedule import read as read_length
from atoll_protos.network.addresses import UNIX, endpoints_of, joined, split
from atoll_protos.network.credentials import Identity, Needed, OutOfDateError, Role
from atoll_syncer.storage.files import StoreError, StoreFull
from atoll_syncer.storage.tape import BYTES_MAX

if TYPE_CHECKING:
    from atoll_protos.network.channels import Folder
    from atoll_syncer.duties.metrics import ShardMetrics

T = TypeVar("T")


FLAGS: Final = (
    ("--run-file", Env.RUN_FILE, str, "the job's run file"),
    ("--shard", Env.SHARD, int, "its number"),
    ("--listen", Env.LISTEN, str, "host:port or unix:PATH; 0.0.0.0: all addresses, also of IPv6"),
    ("--slots-file", Env.SLOTS_FILE, str, "list of the job's learners"),
    ("--length-file", Env.LENGTH_FILE, str, "how long the job is at present"),
    ("--store", Env.STORE, str, "folder or bucket (s3://, gs://, az://) of the durable log"),
    ("--store-endpoint", Env.STORE_ENDPOINT, str, "where a bucket's provider answers; none: usual"),
    ("--tape", Env.TAPE, str, "file of the event tape"),
    ("--export", Env.EXPORT, str, "folder or bucket of the final model"),
    ("--metrics-port", Env.METRICS_PORT, int, "0: none"),
    ("--tls-dir", Env.TLS_DIR, str, "tls.crt, tls.key and ca.crt; none: plain text"),
    ("--health-port", Env.HEALTH_PORT, int, "of the health service alone, in plain text; 0: none"),
    ("--endpoints", Env.ENDPOINTS, str, "of all shards"),
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="atoll-syncer", description=__doc__)
    for flag, name, kind, words in FLAGS:
        given = os.environ.get(name, default(name))
        parser.add_argument(flag, type=kind, default=given, help=words)
    parser.add_argument(
        "--tape-bytes",
        type=int,
        default=BYTES_MAX,
        help="of one file of the tape, of which two are kept; 0: one file, without end",
    )
    parser.add_argument(
        "--record",
        nargs=2,
        metavar=("FOLDER", "MERGES"),
        help="keep what so many merges of each slice are made from, for `atoll replay`",
    )
    parser.add_argument("--new", action="store_true", help="no run of this job can exist yet")
    return parser.parse_args(arguments)


def main() -> None:
    """Run until the job is over or another process has the shard; exits with an ExitCode."""
    allocator.tune()
    flags = parse()
    logs.configure()
    try:
        code = asyncio.run(serve(flags))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        code = int(ExitCode.BAD_INPUT)
    except (StoreError, OutOfDateError) as error:  # time, or a renewal, may heal it
        sys.stderr.write(f"{error}\n")
        code = int(ExitCode.TRY_AGAIN)
    sys.stderr.flush()
    os._exit(code)  # threads that wait for a disk must not hold up the end


def read_file(flag: str, path: str, parse: Callable[[str], T]) -> T:
    """Return what a file holds. Raises SpecError that names the flag."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(flag, f"{path}: {error.strerror}", "give a readable file") from error


def reader(path: str, parse: Callable[[str], T]) -> Callable[[], T | None] | None:
    """Read a file that may change while the shard runs; None: there is none."""
    from atoll_syncer.edges.job_files import JobFile

    return JobFile(path, parse).read if path else None


def open_places(flags: argparse.Namespace, metrics: "ShardMetrics") -> tuple[Any, Any, Any]:
    """Return the store, the tape and the export. Raises SpecError and StoreError."""
    from atoll_syncer.storage.export import BucketExport, Export
    from atoll_syncer.storage.object_store import ObjectStore, open_store
    from atoll_syncer.storage.tape import Tape

    for flag in ("store", "tape", "export"):
        if not getattr(flags, flag):
            raise SpecError(f"--{flag}", "is not given", "give it")

    def count(kind: str, requests: int) -> None:
        metrics.store_requests.labels(kind).inc(requests)

    store = open_store(flags.store, flags.store_endpoint, count)
    target = open_store(flags.export, flags.store_endpoint)
    if isinstance(target, ObjectStore):  # by way of a folder beside the tape
        exporter: Any = BucketExport(target, Path(flags.tape).parent / "export")
    else:
        exporter = Export(target.root)
    tape = Tape(Path(flags.tape), time.time, flags.tape_bytes)
    with opening("--store"):
        try:
            store.open()
        except StoreFull as full:  # the tape may have filled the volume
            if not tape.give_way(full.path):
                raise
            store.open()
    with opening("--tape"):
        tape.open()
    with opening("--export"):
        exporter.check()
    return store, tape, exporter


@contextmanager
def opening(flag: str) -> Iterator[None]:
    """Raise SpecError that names the flag where only another setting helps, else StoreError."""
    try:
        yield
    except StoreError as error:
        if not error.is_permanent:
            raise
        raise SpecError(flag, f"{error.path}: {error.reason}", error.remedy) from error


def host_of(listen: str) -> str:
    """Where the other ports listen, too; beside a Unix socket on the loopback interface.

    Raises SpecError if --listen is not host:port.
    """
    if listen.startswith(UNIX):
        return "127.0.0.1"
    try:
        return split(listen)[0]
    except ValueError as error:
        remedy = "give host:port, as in 0.0.0.0:7700 or [fd00::1]:7700"
        raise SpecError("--listen", str(error), remedy) from error


def bind(server: Any, listen: str, files: Any = None, flag: str = "--listen") -> int:
    """Bind the server, with TLS if it has files, and return its port. SpecError: it is in use."""
    try:
        if files:
            return int(server.add_secure_port(listen, files.credentials()))
        return int(server.add_insecure_port(listen))
    except RuntimeError as error:
        problem = f"{listen} cannot be bound"
        raise SpecError(flag, problem, "free the port or give another one") from error


def open_server(listen: str, files: Any, slots: int) -> Any:
    """Bound, not started. Raises SpecError for a port in use."""
    import structlog

    from atoll_syncer.edges.service import make_server

    server = make_server(slots)
    port = bind(server, listen, files)
    structlog.get_logger().info("listens", at=listen, port=port)
    return server


def server_files(flags: argparse.Namespace) -> "tuple[Folder, Any, Identity | None]":
    """Return the shard's credentials, those of its server, and the job that they belong to.

    As they are renewed they must stay those of that job. Without any the shard serves plain text.
    Raises CredentialsError and OutOfDateError.
    """
    from atoll_protos.network.channels import Folder, ServerFiles

    folder = Folder(path=flags.tls_dir, needed=Needed(roles=(Role.SHARD,)))
    first = folder.read()
    if first is None:
        return folder, None, None
    own = first.identity
    needed = replace(folder.needed, namespace=own.namespace, job=own.job, uid=own.uid)
    folder = replace(folder, needed=needed)
    return folder, ServerFiles(folder, first), own


async def serve(flags: argparse.Namespace) -> int:
    from prometheus_client import CollectorRegistry

    from atoll_syncer.duties.background import start_threads
    from atoll_syncer.duties.metrics import ShardMetrics
    from atoll_syncer.duties.metrics import serve as serve_scrapes
    from atoll_syncer.duties.port import Machine
    from atoll_syncer.edges.registrar_client import RegistrarClient, open_channel
    from atoll_syncer.edges.service import make_health_server
    from atoll_syncer.numbers.values import TensorValues
    from atoll_syncer.serving import serve_shard
    from atoll_syncer.storage.journal import Journal
    from atoll_syncer.storage.object_store import open_store

    if not flags.run_file:
        raise SpecError("--run-file", "is not given", f"give it or set {Env.RUN_FILE}")
    run_file = read_file("--run-file", flags.run_file, RunFile.from_json)
    slots_file, parse_expected = flags.slots_file, Expected.from_json
    slots = len(run_file.slots)
    if slots_file:  # which has the regions as they are now
        run_file = replace(run_file, regions=())
    metrics = ShardMetrics(CollectorRegistry())
    store, tape, exporter = open_places(flags, metrics)
    if run_file.checkpoint is not None:
        open_store(run_file.checkpoint.url, flags.store_endpoint)  # a wrong one is refused here
    folder, files, identity = server_files(flags)
    host = host_of(flags.listen)
    health_server = make_health_server() if flags.health_port else None
    if health_server is not None:
        bind(health_server, joined(host, flags.health_port), flag="--health-port")
    if files is not None:
        metrics.certificate_expiry.set_function(files.expiry)
    if flags.metrics_port:
        try:
            serve_scrapes(metrics, flags.metrics_port, host)
        except OSError as error:
            problem = f"{flags.metrics_port} cannot be bound: {error.strerror}"
            raise SpecError("--metrics-port", problem, "free the port or give another") from error
    pod = os.environ.get(Env.UID, f"no-pod-{secrets.token_hex(8)}")
    endpoints = endpoints_of(flags.endpoints)
    client = None
    if flags.shard:
        if not endpoints:
            raise SpecError("--endpoints", "is not given", "give those of all shards")
        client = RegistrarClient(partial(open_channel, endpoints[0]), folder)
    machine = Machine(
        run_file=run_file,
        shard=flags.shard,
        pod=pod,
        instance=os.environ.get(Env.INSTANCE, f"{pod}-{secrets.token_hex(4)}"),
        new_run=secrets.token_hex(8),
        fresh=flags.new,
        expected=read_file("--slots-file", slots_file, parse_expected) if slots_file else NOBODY,
        read_expected=reader(slots_file, parse_expected),
        read_length=reader(flags.length_file, read_length),
        store=store,
        journal=Journal(store, time.time),
        tape=tape,
        exporter=exporter,
        ask=client.ask if client else None,
        metrics=metrics,
        executors=start_threads(),
        make_values=TensorValues.allocate,
        clock=time.monotonic,
        open_server=partial(open_server, flags.listen, files, slots),
        health_server=health_server,
        identity=identity,
        scratch=Path(flags.tape).parent,
        open_place=partial(open_store, endpoint=flags.store_endpoint),
        record=(Path(flags.record[0]), int(flags.record[1])) if flags.record else None,
    )
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return int(await serve_shard(machine, stopping))


if __name__ == "__main__":
    main()
