"""Handshakes that failed: read from what gRPC's core says of them on the standard error.

A peer whose certificate is not believed never reaches a handler: gRPC's core breaks the handshake,
writes one line to descriptor 2 and tells the program nothing. So a shard with TLS puts a pipe in
that place, and a thread takes those lines out of it. Each becomes a structured line and counts in
a metric; everything else goes on to the real standard error as it came.

Python's own output does not pass the pipe: `listen` gives `sys.stderr` the real descriptor. The
pipe never makes a writer wait: when nobody reads, lines are lost. What a native library says in
the moment in which the process dies may be lost too, so `faulthandler` writes the stacks then.
"""

import contextlib
import faulthandler
import fcntl
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

from atoll_syncer.admission import Reason

FAILED: Final = b"Handshake failed"
PIPE_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 16

# What OpenSSL says, in the order in which it is looked for, and what it means.
MEANINGS: Final[tuple[tuple[bytes, Reason, str], ...]] = (
    (b"PEER_DID_NOT_RETURN_A_CERTIFICATE", Reason.NO_CERTIFICATE, "it presented no certificate"),
    (b"certificate has expired", Reason.EXPIRED, "its certificate has expired"),
    (b"not yet valid", Reason.NOT_YET_VALID, "its certificate is not valid yet"),
    (
        b"CERTIFICATE_VERIFY_FAILED",
        Reason.UNKNOWN_AUTHORITY,
        "its certificate was not issued by an authority of ca.crt: it is self-made, or of another"
        " job, or of a former run",
    ),
    (b"WRONG_VERSION_NUMBER", Reason.PLAIN_TEXT, "it does not speak TLS"),
    (b"HTTP_REQUEST", Reason.PLAIN_TEXT, "it does not speak TLS"),
)

Hear = Callable[[Reason, str], None]


def meaning(line: bytes) -> tuple[Reason, str] | None:
    """What a line of gRPC's core says of a handshake; None if it is about something else."""
    if FAILED not in line:
        return None
    for text, reason, words in MEANINGS:
        if text in line:
            return reason, words
    said = line[line.index(FAILED) :].decode(errors="replace").strip()
    return Reason.HANDSHAKE, said[:200]


class Lines:
    """Cuts what comes in pieces into lines: `hear` gets those of handshakes, `keep` all others."""

    def __init__(self, hear: Hear, keep: Callable[[bytes], None]) -> None:
        self._hear, self._keep, self._rest = hear, keep, b""

    def feed(self, piece: bytes) -> None:
        """The next piece, empty at the end."""
        *lines, rest = (self._rest + piece).split(b"\n")
        if not piece or len(rest) > READ_BYTES:  # no line of ours is so long
            lines, rest = [*lines, rest], b""
            self._take(b"\n".join(lines))
        else:
            for line in lines:
                self._take(line + b"\n")
        self._rest = rest

    def _take(self, line: bytes) -> None:
        found = meaning(line)
        if found is not None:
            self._hear(*found)
        elif line:
            self._keep(line)


def listen(hear: Hear) -> None:
    """From now on `hear` gets every failed handshake of this process, in a thread of its own.

    Call it before anything keeps `sys.stderr`, such as a logger.
    """
    real = os.dup(2)
    ours, theirs = os.pipe()
    with contextlib.suppress(OSError):  # the system's limit may be lower
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(theirs, False)
    os.dup2(theirs, 2)
    os.close(theirs)
    sys.stderr = os.fdopen(real, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)
    lines = Lines(hear, lambda line: _write(real, line))

    def read() -> None:
        while piece := os.read(ours, READ_BYTES):
            lines.feed(piece)

    threading.Thread(target=read, name="handshakes", daemon=True).start()


def _write(descriptor: int, line: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads the output
        os.write(descriptor, line)
