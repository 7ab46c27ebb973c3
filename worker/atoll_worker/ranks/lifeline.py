"""Notices that another rank of this learner has ended, or stands still, whatever this one does.

A collective with one that is gone may wait for long: NCCL does for ten minutes, gloo for thirty
where the other process is stopped. So the head has a TCP stream with every other rank, on which a
thread of each side sends a byte every BEAT_SECONDS:

    the stream ends         the rank has ended, or its host has reset the connection
    silence for too long    the process is stopped or its host is gone; the limit is
                            ATOLL_RANKS_SILENCE_SECONDS
    LEFT, then the end      the rank has left in order, as all do when the job is finished
    LEFT_EARLY              the same, but its loop has ended before that: no loss, but mostly a
                            mistake of the script, which is told to ranks that fail after it
    TOLD, then the end      the rank was told to end (SIGTERM), as when its pod is deleted

Who has lost the head, and a head that has lost anybody, must end (rule 30). If the training thread
has not begun to within `Peers.end_seconds`, by the error of a collective, the thread here ends the
process with exit code 75, and says why.
"""

import contextlib
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from atoll_protos.exits import ExitCode
from atoll_protos.network.addresses import joined
from atoll_protos.network.listening import listening_socket
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
        """Take what has come from a rank; nothing is the end of its stream."""
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
    """Return the message, for one that has not, that these ranks have left early, or nothing."""
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


CONNECT_SECONDS_MAX: Final = 20.0
HINT_SECONDS: Final = 30.0  # of waiting for other ranks in one collective of ours
HEAD: Final = 0
LOOPBACK: Final = "127.0.0.1"

log = structlog.get_logger()


def end_process(lifeline: "Lifeline") -> None:
    lost = lifeline.peers.lost
    log.error(f"{lost}; this rank ends, to be started again with all others", rank=lifeline.rank)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(ExitCode.TRY_AGAIN))


@dataclass(slots=True, kw_only=True)
class Lifeline:
    """The streams of one rank, by the rank at the other end: on the head all, else the head's."""

    streams: dict[int, socket.socket]
    peers: Peers
    end: Callable[["Lifeline"], None] = end_process
    rank: int = HEAD
    head: str = LOOPBACK  # the head's address among the ranks
    waits_since: float | None = None  # the training thread, for the other ranks
    hinted: bool = False
    found: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        if self.streams:
            threading.Thread(target=self._run, name="atoll-lifeline", daemon=True).start()

    def words(self, seconds: float) -> str:
        """Who is lost, as it is known within `seconds`; empty if nobody is."""
        if self.streams:
            self.found.wait(seconds)
        return self.peers.lost

    def close(self, *, in_order: bool, early: bool = False, told: bool = False) -> None:
        """Look no more. The others hear that this rank leaves in order, or early, or was told."""
        word = (LEFT_EARLY if early else LEFT) if in_order else TOLD if told else b""
        if word:
            for stream in self.streams.values():
                with contextlib.suppress(OSError):
                    stream.send(word)
        self.closing.set()

    def _run(self) -> None:
        self._watch()
        if self.peers.lost and not self.closing.wait(self.peers.end_seconds):
            self.end(self)
        for stream in self.streams.values():
            stream.close()

    def _watch(self) -> None:
        """Return when somebody is lost, or when there is nobody left to look for."""
        peers, beat_at = self.peers, time.monotonic()
        peers.heard = dict.fromkeys(self.streams, beat_at)
        while peers.heard and not self.closing.is_set() and not self.found.is_set():
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_SECONDS
                for rank in peers.heard:
                    with contextlib.suppress(OSError):
                        self.streams[rank].send(BEAT)
            for rank in self._readable(peers.heard):
                peers.hear(rank, _read(self.streams[rank]), time.monotonic())
            peers.look(time.monotonic())
            self._look(time.monotonic())
            if peers.lost:
                self.found.set()

    def _look(self, now: float) -> None:
        """Say, once, that the training thread waits for long for ranks that are well."""
        since = self.waits_since
        if since is not None and now - since > HINT_SECONDS and not self.hinted:
            self.hinted = True
            log.warning(
                f"this rank has waited {HINT_SECONDS:g} s for the others: every rank calls step() "
                "after each of its steps, also those whose tokens and loss do not count",
                rank=self.rank,
            )

    def _readable(self, ranks: Iterable[int]) -> list[int]:
        """Those whose streams have something, after a beat at most. `select` counts few files."""
        numbers = {self.streams[rank].fileno(): rank for rank in ranks}
        poll = select.poll()
        for number in numbers:
            poll.register(number, select.POLLIN)
        return [numbers[number] for number, _ in poll.poll(BEAT_SECONDS * 1000)]


def open_lifeline(
    rank: int, share: Callable[[object], list[object]], silence_seconds_max: float
) -> Lifeline:
    """Connect this rank to the head; collective. `share` gives every rank's value to all.

    Where ranks cannot connect, a warning says that losses are seen by collectives alone; then the
    head's host carries all values.
    """
    hosts = share(_host())
    listener: socket.socket | None = None
    offer: object = None
    if rank == HEAD:
        one_host = len(set(hosts)) == 1
        listener = listening_socket(LOOPBACK if one_host else "", backlog=len(hosts))
        address = LOOPBACK if one_host else _address()
        offer = (address, listener.getsockname()[1], secrets.token_hex(16))
    offer = share(offer)[HEAD]
    assert isinstance(offer, tuple)
    address, port, token = offer
    streams, trouble = dict[int, socket.socket](), ""
    if rank != HEAD:
        try:
            streams[HEAD] = socket.create_connection((address, port), CONNECT_SECONDS_MAX)
            streams[HEAD].sendall(f"{token}{rank:08d}".encode())
        except OSError as error:
            trouble = f"rank {rank} does not reach {joined(address, port)} ({error})"
    troubles = [each for each in share(trouble) if each]
    if listener is not None:
        with listener:
            if not troubles:
                streams = _accept(listener, len(hosts) - 1, token)
    if troubles:
        log.warning(f"a rank that stands still will be noticed late: {troubles[0]}", rank=rank)
        for stream in streams.values():
            stream.close()
        streams = {}
    for stream in streams.values():
        stream.setblocking(False)
    peers = Peers(silence_seconds_max=silence_seconds_max)
    lifeline = Lifeline(streams=streams, peers=peers, rank=rank, head=address)
    lifeline.start()
    return lifeline


def _accept(listener: socket.socket, ranks: int, token: str) -> dict[int, socket.socket]:
    """Return the streams of all ranks, which have connected already; others are turned away."""
    listener.settimeout(CONNECT_SECONDS_MAX)
    streams: dict[int, socket.socket] = {}
    while len(streams) < ranks:
        stream, _ = listener.accept()
        stream.settimeout(CONNECT_SECONDS_MAX)
        said = b""
        with contextlib.suppress(OSError):
            said = stream.recv(len(token) + 8, socket.MSG_WAITALL)
        if said[:-8] == token.encode():
            streams[int(said[-8:])] = stream
        else:
            stream.close()
    return streams


def _read(stream: socket.socket) -> bytes:
    try:
        return stream.recv(4096)
    except BlockingIOError:
        return BEAT
    except OSError:
        return b""


def _host() -> tuple[str, int]:
    """Equal for two processes only if one reaches the other over the loopback."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        return boot.read_text().strip(), Path("/proc/self/ns/net").stat().st_ino
    return secrets.token_hex(16), 0


def _address() -> str:
    """Of this host, for the others: as torch reaches rank 0, else by its name, of IPv4 if it can.

    The name of a plain machine is often 127.0.1.1 to itself.
    """
    if known := os.environ.get("MASTER_ADDR"):
        return known
    found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
