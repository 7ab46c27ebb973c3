"""Houses behind NAT are what the tests of machines take them for: nobody dials them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from local.machines.nat import NAME, V4, V6, Space, behind_nat, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}, for houses behind NAT")
PORT = 7700
HOUSES = ((V4, 20.0), (V6, 20.0))  # Mbit/s up
LISTENER = f"""
import socket
listener = socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    listener.accept()[0].close()
"""
REACHED = "import socket; socket.create_connection(('{}', {}), 10)"


def reaches(source: Space, target: str, port: int) -> bool:
    """Whether a TCP connection comes about."""
    words = [*source.enter, sys.executable, "-c", REACHED.format(target, port)]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def test_a_house_dials_the_server_and_nobody_dials_a_house(tmp_path: Path) -> None:
    with behind_nat(tmp_path, *HOUSES) as place, ExitStack() as stack:
        spaces = (place.server, *place.houses)
        for each in spaces:
            stack.enter_context(listening(each))
        for house, family, number in zip(place.houses, (V4, V6), (11, 12), strict=True):
            assert reaches(house, "localhost", PORT)
            assert reaches(house, NAME, PORT)
            for target in (f"{family.private}2", f"{family.public}{number}"):
                assert not reaches(place.server, target, PORT)
            # Not even if it knows the way.
            way = f"{family.private}2 via {family.public}{number}"
            place.server.run(f"ip {family.option} route add {way}")
            assert not reaches(place.server, f"{family.private}2", PORT)


@contextmanager
def listening(space: Space) -> Iterator[None]:
    """A process there takes connections at the port, of both families."""
    words = [*space.enter, sys.executable, "-c", LISTENER]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()
