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
from typing import TYPE_CHECKING, Any, TypeVar

from atoll_protos import allocator, logs
from atoll_protos.addresses import joined, split
from atoll_protos.credentials import Needed, OutOfDateError
from atoll_protos.environment import Env, default
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.expected import NOBODY, Expected
from atoll_protos.identity import Identity, Role
from atoll_protos.length import read as read_length
from atoll_protos.run import RunFile
from atoll_syncer import handshakes
from atoll_syncer.admission import Reason
from atoll_syncer.storage.store import StoreError, StoreFull

if TYPE_CHECKING:
    from atoll_protos.channels import Folder

T = TypeVar("T")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags of one shard's process."""

    def env(name: str) -> str:
        return os.environ.get(name, default(name))

    parser = argparse.ArgumentParser(prog="atoll-syncer", description=__doc__)
    parser.add_argument("--run-file", default=env(Env.RUN_FILE), help="the job's run file")
    parser.add_argument("--shard", type=int, default=int(env(Env.SHARD)))
    parser.add_argument(
        "--listen", default=env(Env.LISTEN), help="host:port; 0.0.0.0: all addresses, also of IPv6"
    )
    parser.add_argument(
        "--slots-file", default=env(Env.SLOTS_FILE), help="list of the job's learners"
    )
    parser.add_argument(
        "--length-file", default=env(Env.LENGTH_FILE), help="how long the job is at present"
    )
    parser.add_argument("--store", default=env(Env.STORE), help="folder of the durable log")
    parser.add_argument("--tape", default=env(Env.TAPE), help="file of the event tape")
    parser.add_argument(
        "--tape-bytes",
        type=int,
        default=256 << 20,
        help="of one file of the tape, of which two are kept; 0: one file, without end",
    )
    parser.add_argument("--export", default=env(Env.EXPORT), help="folder of the final model")
    parser.add_argument(
        "--metrics-port", type=int, default=int(env(Env.METRICS_PORT)), help="0: none"
    )
    parser.add_argument(
        "--tls-dir", default=env(Env.TLS_DIR), help="tls.crt, tls.key and ca.crt; none: plain text"
    )
    parser.add_argument(
        "--health-port",
        type=int,
        default=int(env(Env.HEALTH_PORT)),
        help="of the health service alone, in plain text; 0: none",
    )
    parser.add_argument("--endpoints", default=env(Env.ENDPOINTS), help="of all shards")
    parser.add_argument("--new", action="store_true", help="no run of this job can exist yet")
    return parser.parse_args(arguments)


def main() -> None:
    """Run until the job is over or another process has the shard; exits with an ExitCode."""
    allocator.tune()
    flags = parse()
    refused = Refused()
    if flags.tls_dir:
        handshakes.listen(refused.hear)
    logs.configure()
    try:
        code = asyncio.run(serve(flags, refused))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        code = int(ExitCode.BAD_INPUT)
    except (StoreError, OutOfDateError) as error:  # time, or a renewal, may heal it
        sys.stderr.write(f"{error}\n")
        code = int(ExitCode.TRY_AGAIN)
    sys.stderr.flush()
    os._exit(code)  # threads that wait for a disk must not hold up the end


class Refused:
    """Says and counts handshakes that have failed; called from a thread of its own."""

    def __init__(self) -> None:
        self.metrics: Any = None  # once there are some

    def hear(self, reason: Reason, words: str) -> None:
        """One line each: peers that are refused dial again after a back-off."""
        import structlog

        structlog.get_logger().warning("peer refused in the handshake", reason=words)
        if self.metrics is not None:
            self.metrics.refuse_peer(reason, words, time.monotonic())


def read_run_file(path: str | None) -> RunFile:
    """Raises SpecError that names the flag."""
    if not path:
        raise SpecError("--run-file", "is not given", f"give it or set {Env.RUN_FILE}")
    return RunFile.from_json(_text("--run-file", path))


def read_slots_file(path: str) -> Expected:
    """Who the job's learners are, nobody if no file is given; raises SpecError."""
    return Expected.from_json(_text("--slots-file", path)) if path else NOBODY


def reader(path: str, parse: Callable[[str], T]) -> Callable[[], T | None] | None:
    """Reads a file that may change while the shard runs; None: there is none."""
    from atoll_syncer.job_files import JobFile

    return JobFile(path, parse).read if path else None


def _text(flag: str, path: str) -> str:
    """A file's content. Raises SpecError that names the flag."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(flag, f"{path}: {error.strerror}", "give a readable file") from error


def open_places(flags: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The store, the tape and the export. Raises SpecError and StoreError."""
    from atoll_syncer.storage.export import Export
    from atoll_syncer.storage.store import FileStore
    from atoll_syncer.storage.tape import Tape

    for flag in ("store", "tape", "export"):
        if not getattr(flags, flag):
            raise SpecError(f"--{flag}", "is not given", "give it")
    store, exporter = FileStore(Path(flags.store)), Export(Path(flags.export))
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
    """Raises SpecError that names the flag where only another path or setting helps.

    Other trouble stays a StoreError.
    """
    try:
        yield
    except StoreError as error:
        if not error.is_permanent:
            raise
        raise SpecError(flag, f"{error.path}: {error.reason}", error.remedy) from error


def serve_metrics(metrics: Any, flags: argparse.Namespace) -> None:
    """On the interface of --listen. Raises SpecError for a port in use."""
    from atoll_syncer.metrics import serve as serve_scrapes

    try:
        serve_scrapes(metrics, flags.metrics_port, host_of(flags.listen))
    except OSError as error:
        problem = f"{flags.metrics_port} cannot be bound: {error.strerror}"
        raise SpecError("--metrics-port", problem, "free the port or give another") from error


def host_of(listen: str) -> str:
    """Where the other ports listen, too. Raises SpecError if --listen is not host:port."""
    try:
        return split(listen)[0]
    except ValueError as error:
        remedy = "give host:port, as in 0.0.0.0:7700 or [fd00::1]:7700"
        raise SpecError("--listen", str(error), remedy) from error


def bind(server: Any, listen: str, files: Any = None, flag: str = "--listen") -> int:
    """The port that the server has, with TLS if it has files. Raises SpecError for one in use."""
    try:
        port: int = (
            server.add_secure_port(listen, files.credentials())
            if files
            else server.add_insecure_port(listen)
        )
    except RuntimeError as error:
        remedy = "free the port or give another one"
        raise SpecError(flag, f"{listen} cannot be bound", remedy) from error
    return port


def server_files(flags: argparse.Namespace) -> "tuple[Folder, Any, Identity | None]":
    """The shard's credentials, those of its server, and the job that they belong to.

    As they are renewed they must stay those of that job. Without any the shard serves plain text.
    Raises CredentialsError and OutOfDateError.
    """
    from atoll_protos.channels import Folder, ServerFiles

    folder = Folder(path=flags.tls_dir, needed=Needed(roles=(Role.SHARD,)))
    first = folder.read()
    if first is None:
        return folder, None, None
    own = first.identity
    needed = replace(folder.needed, namespace=own.namespace, job=own.job, uid=own.uid)
    folder = replace(folder, needed=needed)
    return folder, ServerFiles(folder, first), own


async def serve(flags: argparse.Namespace, refused: "Refused") -> int:
    """One shard, from its log to its last session, on this machine."""
    import structlog
    from prometheus_client import CollectorRegistry

    from atoll_syncer.background import start_threads
    from atoll_syncer.exporting import Reach, keep_taking
    from atoll_syncer.metrics import Metrics
    from atoll_syncer.numbers.values import Values
    from atoll_syncer.outside import Machine
    from atoll_syncer.registrar_client import RegistrarClient, open_channel
    from atoll_syncer.service import make_server
    from atoll_syncer.serving import serve_shard
    from atoll_syncer.storage.journal import Journal

    run_file = read_run_file(flags.run_file)
    store, tape, exporter = open_places(flags)
    folder, files, identity = server_files(flags)
    server = make_server()
    host = host_of(flags.listen)
    port = bind(server, flags.listen, files)
    health_server = make_server() if flags.health_port else None
    if health_server is not None:
        bind(health_server, joined(host, flags.health_port), flag="--health-port")
    metrics = Metrics(CollectorRegistry())
    refused.metrics = metrics
    if files is not None:
        metrics.certificate_expiry.set_function(files.expiry)
    if flags.metrics_port:
        serve_metrics(metrics, flags)
    pod = os.environ.get(Env.UID, f"no-pod-{secrets.token_hex(8)}")
    open_registrar = partial(open_channel, flags.endpoints.split(",")[0])
    client = RegistrarClient(open_registrar, folder) if flags.shard else None
    machine = Machine(
        run_file=run_file,
        shard=flags.shard,
        pod=pod,
        instance=os.environ.get(Env.INSTANCE, f"{pod}-{secrets.token_hex(4)}"),
        new_run=secrets.token_hex(8),
        fresh=flags.new,
        expected=read_slots_file(flags.slots_file),
        read_expected=reader(flags.slots_file, Expected.from_json),
        read_length=reader(flags.length_file, read_length),
        store=store,
        journal=Journal(store, time.time),
        tape=tape,
        exporter=exporter,
        ask=client.ask if client else None,
        metrics=metrics,
        executors=start_threads(),
        make_values=Values.allocate,
        clock=time.monotonic,
        server=server,
        health_server=health_server,
        identity=identity,
    )
    if run_file.export_every is not None and client is None:
        reach = Reach(tuple(flags.endpoints.split(",")), folder)
        keep_exporting = partial(keep_taking, run_file, reach, Path(flags.export))
        machine = replace(machine, keep_exporting=keep_exporting)
    structlog.get_logger().info("listens", shard=flags.shard, port=port)
    return int(await serve_shard(machine, stop_signals()))


def stop_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


if __name__ == "__main__":
    main()
