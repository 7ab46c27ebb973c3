"""A shard and `atoll store check` with buckets that they can use, and with others."""

import os
import subprocess
from pathlib import Path

import obstore
import pytest

from atoll_protos.exits import ExitCode
from local.command import ATOLL, ended
from local.stores import servers
from local.stores.fault_proxy import FaultProxy
from local.stores.gcs_stub import GcsStub
from local.stores.opened import bucket
from local.stores.servers import NO_BUCKET, Place, Server
from wire.raw_peer import shard_command


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


def test_a_server_that_ignores_the_condition_is_refused_by_its_flag(tmp_path: Path) -> None:
    with servers.gcs(GcsStub(honours_conditions=False)) as server:
        place = server.place()
        refused, checked = shard(place, tmp_path), check(place)
    assert refused.returncode == ExitCode.BAD_INPUT, refused.stderr
    said = refused.stderr.splitlines()[-1]
    assert said.startswith(f"--store: {place.url}: 8 of 8 creators of one name succeeded"), said
    assert "use a server that honours If-None-Match" in said
    assert "Traceback" not in refused.stderr
    assert checked.returncode == ExitCode.BAD_INPUT
    assert "NO   of several creators of one name exactly one succeeds: 8 of 8" in checked.stdout


def test_a_bucket_that_is_not_there_is_tried_again(server: Server, tmp_path: Path) -> None:
    place = server.place(NO_BUCKET)
    away, checked = shard(place, tmp_path), check(place)
    assert away.returncode == ExitCode.TRY_AGAIN, away.stderr
    assert NO_BUCKET in away.stderr
    assert "Traceback" not in away.stderr
    assert checked.returncode == ExitCode.TRY_AGAIN, checked.stderr
    assert NO_BUCKET in checked.stderr


def test_who_is_refused_is_told_what_to_give(
    behind: Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.answer(403, "", count=1000)
    away, checked = shard(behind, tmp_path), check(behind)
    for each in (away, checked):
        assert each.returncode == ExitCode.TRY_AGAIN, each.stderr
        assert "403" in each.stderr
        assert "give the shards' pods credentials" in each.stderr


@pytest.mark.parametrize("url", ["http://host/path", "s3:///path"])
def test_what_names_no_bucket_is_refused(url: str, tmp_path: Path) -> None:
    place = Place(url=url, endpoint="", environment={})
    for done in (shard(place, tmp_path), check(place)):
        assert done.returncode == ExitCode.BAD_INPUT, done.stderr
        assert f"{url}: is no bucket; give s3://" in done.stderr
