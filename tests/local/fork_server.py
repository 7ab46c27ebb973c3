"""Processes of tests start as forks of one that has imported torch, and not as new interpreters.

An import of torch with what an optimizer needs of it takes 3 to 5 s of CPU, a fork 0.04 s. Inside
of `installed()` a `subprocess.Popen` of this Python's modules, scripts and commands (`python -m`,
`atoll`) is such a fork, and so are the processes that it starts itself. All others, and those whose
environment has what only a new interpreter reads, are executed as ever.

A fork is a process as any other: it has its own pid, environment, folder, descriptors, session and
signals, and whoever asked for it is its parent. The way there:

    asks (Popen) --request--> server --forks--> between --forks--> the process
      ^                                            ends at once       |
      +------------ the parent, as the nearest "child subreaper" -----+

Each process that may start others has a server of its own, which it forks before all else: while it
has one thread, and has imported nothing more. A server ends when nobody can ask any more.

What a fork has of a new interpreter: `sys.argv`, `sys.path`, `__main__`, exit codes, tracebacks,
`atexit`, and in /proc its command line and environment. What it lacks: settings that only the start
of an interpreter reads, imports in their order, the end of an interpreter. A test about these is
marked `fresh`, and so are some complete runs, one of each kind.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

PRELOADED: Final = (
    *("grpc.aio", "torch._dynamo", "torch.distributed.run", "torch.distributed.fsdp", "atoll"),
    *("safetensors.torch", "matplotlib.pyplot", "torch.utils.tensorboard"),
    *("atoll_protos", "atoll_syncer", "atoll_worker.transport_process", "atoll_worker.launcher"),
    *("atoll_operator.cli", "atoll_operator.local", "bytegpt.train", "bytegpt.evaluate"),
)
COMMANDS: Final = ("atoll", "torchrun")
LEAVES: Final = (
    "atoll_syncer",
    "atoll_worker.transport_process",
)  # they start no process of Python
READ_AT_START: Final = ("PYTHON", "LD_", "MALLOC_", "OMP_", "MKL_", "GRPC_")
MAY_DIFFER: Final = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER")
MESSAGE_BYTES: Final = 1 << 17
SET_PDEATHSIG, SET_MM, SET_MM_MAP, SET_SUBREAPER = 1, 35, 14, 36
EXECUTING: Final = subprocess.Popen
STARTED: Final = {**os.environ}  # with what servers start

_libc = ctypes.CDLL(None)
_libc.sbrk.restype = ctypes.c_void_p


def request(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What a command runs; None: it is no module, script or command of this Python."""
    words, options, with_parent = [*command], set[str](), 0
    if os.path.basename(words[0]) == "setpriv" and words[1:2] == ["--pdeathsig"]:
        with_parent, words = signal.Signals[f"SIG{words[2]}"], words[4:]
    program = shutil.which(words[0], path=environment.get("PATH", os.defpath)) or ""
    folder, name = os.path.split(program)
    if folder != os.path.dirname(sys.executable):
        return None
    if name.startswith("python"):
        words.pop(0)
        while words and words[0] in ("-P", "-u", "-m"):
            options.add(words.pop(0))
        if not words or words[0].startswith("-"):
            return None
    elif name in COMMANDS:
        words[0] = program
    else:
        return None
    return {"argv": [*command], "words": words, "options": [*options], "with_parent": with_parent}


def same_start(theirs: Mapping[str, str]) -> bool:
    """Whether an interpreter with their environment would start as the first server did."""
    first = f"{STARTED.get('PYTHONPATH', '')}{os.pathsep}".lstrip(os.pathsep)
    return f"{theirs.get('PYTHONPATH', '')}{os.pathsep}".startswith(first) and all(
        STARTED.get(name) == theirs.get(name)
        for name in {*STARTED, *theirs}
        if name.startswith(READ_AT_START) and name not in MAY_DIFFER
    )


class Forking(subprocess.Popen[Any]):
    """Forks instead of executing, where that is the same."""

    server: ClassVar[tuple[socket.socket, int] | None] = None  # and who may ask it
    lock: ClassVar[Any] = threading.Lock()

    def _execute_child(self, args: Any, executable: Any, *more: Any) -> None:
        if not self._forked(args, executable, *more):
            super()._execute_child(args, executable, *more)  # type: ignore[misc]

    def _forked(self, args: Any, executable: Any, *more: Any) -> bool:
        preexec, close_fds, pass_fds, cwd, env, _, _, shell = more[:8]
        pipes, (restore, *others, umask, session, group) = more[8:14], more[14:]
        special = preexec or executable or shell or not close_fds or not restore
        if special or isinstance(args, (str, bytes)) or others != [None, None, None]:
            return False
        given = os.environ if env is None else env
        environment = {os.fsdecode(key): os.fsdecode(value) for key, value in given.items()}
        asked = request([os.fsdecode(each) for each in args], environment)
        if asked is None or group != -1:
            return False
        cwd = os.fsdecode(cwd or ".")
        script = "." if "-m" in asked["options"] else asked["words"][0]
        if not os.path.exists(os.path.join(cwd, script)):
            return False  # it fails as ever
        end, asks = Forking.server = Forking.server or start()
        if asks != os.getpid() or not same_start(environment):
            return False
        asked |= {"cwd": cwd, "environment": environment, "session": session}
        asked |= {"parent": asks, "targets": [0, 1, 2, *pass_fds]}
        asked["umask"] = own_umask() if umask < 0 else umask
        standard = enumerate([pipes[0], pipes[3], pipes[5]])
        descriptors = [*(own if own >= 0 else number for number, own in standard), *pass_fds]
        with self.lock:
            _libc.prctl(SET_SUBREAPER, 1, 0, 0, 0)
            socket.send_fds(end, [json.dumps(asked).encode()], descriptors)
            self.pid = int(end.recv(MESSAGE_BYTES))
            _libc.prctl(SET_SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return True


def serve(end: socket.socket) -> NoReturn:
    """Fork what is asked for until nobody can ask. Returns in no process."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(end, MESSAGE_BYTES, 253)
        if not data:
            os._exit(0)
        if not (pid := os.fork()):
            between = os.getpid()
            if not os.fork():
                become(end, json.loads(data), descriptors, between)
            os._exit(0)
        os.waitpid(pid, 0)
        for each in descriptors:
            os.close(each)


def become(end: socket.socket, asked: dict[str, Any], given: list[int], between: int) -> NoReturn:
    """Be the process that was asked for, to its end."""
    while os.getppid() == between:
        time.sleep(0.0005)
    _libc.prctl(SET_PDEATHSIG, asked["with_parent"], 0, 0, 0)
    if os.getppid() != asked["parent"]:
        os._exit(0)  # nobody is there any more
    if asked["session"]:
        os.setsid()
    else:
        os.setpgid(0, os.getpgid(asked["parent"]))
    os.chdir(asked["cwd"])
    os.umask(asked["umask"])
    high = 1 + max([*asked["targets"], *given, end.fileno()])
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, high) for each in [*given, end.detach()]]
    for copy, target in zip(copies[:-1], asked["targets"], strict=True):
        os.dup2(copy, target, inheritable=True)
    os.write(copies[-1], str(os.getpid()).encode())
    close_but(asked["targets"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    show(asked["argv"], asked["environment"])
    if asked["words"][0] not in LEAVES:
        install()
    prepare(asked)
    run(asked)


def own_umask() -> int:
    """Read without a change, since other threads may make files."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("Umask:") + 1], 8)


def close_but(kept: Sequence[int]) -> None:
    """Close all other descriptors."""
    for low, high in zip([-1, *sorted(kept)], [*sorted(kept), 1 << 16], strict=True):
        if low + 1 < high:  # of (0, 0) it would close all
            os.closerange(low + 1, high)


_shown: list[Any] = []  # memory that the kernel reads


def show(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have them in /proc/PID/cmdline and environ, where the kernel permits it."""
    pairs = [f"{name}={value}" for name, value in environment.items()]
    texts = [b"".join(os.fsencode(each) + b"\0" for each in words) for words in (argv, pairs)]
    _shown[:] = [ctypes.create_string_buffer(text, len(text) or 1) for text in texts]
    places = [ctypes.addressof(each) for each in _shown]
    ends = [place + len(text) for place, text in zip(places, texts, strict=True)]
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    code, stack = [int(stat[number]) for number in (23, 24, 42, 43, 44)], int(stat[25])
    memory = (*code, _libc.sbrk(ctypes.c_long(0)), stack, places[0], ends[0], places[1], ends[1])
    prctl_mm_map = struct.pack("=12Q2I", *memory, 0, 0, 2**32 - 1)  # the program stays as it is
    _libc.prctl(SET_MM, SET_MM_MAP, prctl_mm_map, ctypes.c_ulong(len(prctl_mm_map)), 0)


def install() -> None:
    """Give this process a server, which is a fork of it, and let its Popen ask that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        os.setpgid(0, 0)  # signals to this process's group are not for it
        for standard in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), standard)
        close_but([0, 1, 2, theirs.fileno()])
        show(["fork-server"], {})
        serve(theirs)
    theirs.close()
    Forking.server = ours, os.getpid()
    subprocess.Popen = Forking  # type: ignore[misc]


_base_path: list[str] = []  # of sys.path: what every interpreter has


def prepare(asked: dict[str, Any]) -> None:
    """What an interpreter has before it runs a program."""
    words, options = asked["words"], asked["options"]
    sys.argv, sys.orig_argv = [*words], [*asked["argv"]]
    first = [os.getcwd()] if "-m" in options else [os.path.dirname(os.path.realpath(words[0]))]
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    given = [os.path.abspath(each) for each in given]
    sys.path[:] = [*(() if "-P" in options else first), *given, *_base_path]
    sys.path_importer_cache.clear()
    if "-u" in options or os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.modules["__main__"] = types.ModuleType("__main__")
    for name in (words[0], f"{words[0]}.__main__"):  # it was imported, but has not run
        sys.modules.pop(name, None)
    sys.modules["numpy.random"].seed()


def run(asked: dict[str, Any]) -> NoReturn:
    """Run the module or script as `__main__`, and end as an interpreter does."""
    code, killed, path = 0, False, asked["words"][0]
    try:
        if "-m" in asked["options"]:
            runpy._run_module_as_main(path)  # type: ignore[attr-defined]
        else:
            main = sys.modules["__main__"]
            main.__file__ = os.path.abspath(path)
            exec(compile(Path(path).read_bytes(), main.__file__, "exec"), main.__dict__)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            sys.stderr.write(f"{error.code}\n")
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code, killed = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for each in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            each.flush()
    if killed:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)  # what torch and others do at the end of an interpreter takes 0.5 s


def start() -> tuple[socket.socket, int]:
    """A server that is a new interpreter: the first one."""
    STARTED.update(os.environ)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        server = EXECUTING(command, env=STARTED, pass_fds=[theirs.fileno()], process_group=0)
    atexit.register(server.wait)
    atexit.register(ours.close)  # which is called first, and ends it
    return ours, os.getpid()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Inside, Popen forks where it can."""
    subprocess.Popen = Forking  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = EXECUTING  # type: ignore[misc]


def preload(name: str) -> None:
    """Import it, of ours with all modules inside; who needs what is not there will fail at it."""
    with contextlib.suppress(ImportError):
        inside = getattr(importlib.import_module(name), "__path__", ())
        for found in pkgutil.iter_modules(inside, f"{name}.") if name.startswith("atoll_") else ():
            if not found.name.endswith("__main__"):
                preload(found.name)


if __name__ == "__main__":  # the first server; the one argument is a descriptor
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    _base_path = [each for each in sys.path if each not in STARTED.get("PYTHONPATH", "").split(":")]
    for name in PRELOADED:
        preload(name)
    gc.freeze()  # forks need not look at all of torch
    serve(socket.socket(fileno=int(sys.argv[1])))
