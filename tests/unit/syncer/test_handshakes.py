"""Failed handshakes are taken out of what gRPC's core writes; everything else goes its way."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_syncer.admission import Reason
from atoll_syncer.handshakes import Lines, meaning

CORE = b"I1122 07:18:44.154971   20451 ssl_transport_security.cc:2563] Handshake failed with error "
SSL = CORE + b"SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (SSL + b"PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid context\n", Reason.NO_CERTIFICATE),
        (SSL + b"CERTIFICATE_VERIFY_FAILED: certificate has expired\n", Reason.EXPIRED),
        (SSL + b"CERTIFICATE_VERIFY_FAILED: certificate is not yet valid\n", Reason.NOT_YET_VALID),
        (
            SSL + b"CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate\n",
            Reason.UNKNOWN_AUTHORITY,
        ),
        (SSL + b"WRONG_VERSION_NUMBER: Invalid certificate verification\n", Reason.PLAIN_TEXT),
        (SSL + b"SOMETHING_ELSE: x\n", Reason.HANDSHAKE),
    ],
)
def test_each_failure_has_a_reason_of_the_metric_and_words(line: bytes, reason: Reason) -> None:
    found = meaning(line)
    assert found is not None
    assert found[0] is reason
    assert found[1]
    assert "\n" not in found[1]


@given(st.lists(st.sampled_from([b"a line\n", b"\n", SSL + b"HTTP_REQUEST\n"])), st.data())
def test_lines_come_through_whole_however_they_are_cut(
    lines: list[bytes], data: st.DataObject
) -> None:
    heard: list[Reason] = []
    kept: list[bytes] = []
    one = Lines(lambda reason, _: heard.append(reason), kept.append)
    text = b"".join(lines)
    while text:
        count = data.draw(st.integers(1, len(text)))
        one.feed(text[:count])
        text = text[count:]
    one.feed(b"")
    failed = [line for line in lines if b"Handshake" in line]
    assert heard == [Reason.PLAIN_TEXT] * len(failed)
    assert b"".join(kept) == b"".join(line for line in lines if b"Handshake" not in line)


def test_a_text_without_an_end_of_line_is_not_kept_for_ever() -> None:
    kept: list[bytes] = []
    one = Lines(lambda *_: None, kept.append)
    for _ in range(9):
        one.feed(bytes(1 << 14))
    assert sum(map(len, kept)) >= 1 << 16


SCRIPT = """
import os, sys, threading, time
from atoll_syncer import handshakes
heard = threading.Event()
handshakes.listen(lambda reason, words: (print(reason, words, flush=True), heard.set()))
os.write(2, b"native line\\n")
sys.stderr.write("line of Python's\\n")
os.write(2, b"x] Handshake failed with error PEER_DID_NOT_RETURN_A_CERTIFICATE\\n")
heard.wait(30)
for number in range(100_000):  # more than a pipe holds: nobody waits
    try:
        os.write(2, b"a long native line of some length, again and again\\n")
    except BlockingIOError:
        pass
sys.stderr.write("the end\\n")
os._exit(3)
"""


def test_a_process_says_all_else_on_its_standard_error_and_never_waits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 3, done.stderr[-500:]
    assert done.stdout == "no_certificate it presented no certificate\n"
    lines = done.stderr.splitlines()
    assert "native line" in lines
    assert "line of Python's" in lines
    assert "the end" in lines
    assert not [line for line in lines if "Handshake" in line]
