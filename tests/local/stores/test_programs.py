"""A shard and `atoll store check` with buckets that they can use, and with others."""

import os
import subprocess
from pathlib import Path

import obstore

from atoll_protos.exits import ExitCode
from local.command import ATOLL, ended
from local.stores.fault_proxy import FaultProxy
from local.stores.opened import bucket
from local.stores.servers import Place, Server
from wire.fixtures import shard_command


def shard(place: Place, folder: Path) -> "subprocess.CompletedProcess[str]":
    """A shard's process to its end."""
    store = ("--store", place.url, "--store-endpoint", place.endpoint)
    words = shard_command(folder, "127.0.0.1:0", *store)
    return ended(*words, env={**os.environ, **place.environment})


def check(place: Place) -> "subprocess.CompletedProcess[str]":
    """`atoll store check` to its end."""
    words = (ATOLL, "store", "check", place.url, "--endpoint", place.endpoint)
    return ended(*words, env={**os.environ, **place.environment})


def test_a_bucket_that_can_be_used_is_found_fit_and_left_empty(server: Server) -> None:
    place = server.place()
    done = check(place)
    assert done.returncode == ExitCode.FINAL, done.stderr + done.stdout
    assert "NO " not in done.stdout
    assert "of several creators of one name exactly one succeeds: 10 races" in done.stdout
    assert obstore.list(bucket(place)).collect() == []


def test_a_way_on_which_the_condition_is_lost_is_refused_by_its_flag(
    moto: Server, tmp_path: Path
) -> None:
    with FaultProxy(moto.port).running() as proxy:
        proxy.strip("If-None-Match", "^PUT ")
        place = moto.place().at(proxy.port)
        refused, checked = shard(place, tmp_path), check(place)
    assert refused.returncode == ExitCode.BAD_INPUT, refused.stderr
    said = refused.stderr.splitlines()[-1]
    assert said.startswith(f"--store: {place.url}: 8 of 8 creators of one name succeeded"), said
    assert "use a server that honours If-None-Match" in said
    assert "Traceback" not in refused.stderr
    assert checked.returncode == ExitCode.BAD_INPUT
    assert "NO   of several creators of one name exactly one succeeds: 8 of 8" in checked.stdout
