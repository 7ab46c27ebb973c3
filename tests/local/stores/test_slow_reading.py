"""A shard's process whose values take long to read commits long before all are back (rule 45)."""

import re
import signal
import sys
from pathlib import Path

import pytest

from local.background import running
from local.command import LIGHT, TINY, TWO_LEARNERS, commits
from local.law import check_law
from local.stores.fault_proxy import FaultProxy
from local.stores.servers import Server

SHARD = 1
FRAGMENTS = 12
READ_SECONDS = 3.0  # of each slice: as if it had gigabytes
READS = re.compile(rf"^GET \S*/{SHARD}/objects/([^?\s]+)")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_first_commit_after_a_restart_comes_before_the_fifth_slice_is_read(
    moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with FaultProxy(moto.port).running() as proxy:
        settings = (
            *(*TWO_LEARNERS, *LIGHT, "--set", "spec.steps=1000000"),
            *("--set", f"spec.sync.fragments={FRAGMENTS}"),
            *moto.place().at(proxy.port).used(monkeypatch),
        )
        with running(TINY, out, *settings) as run:
            every = set(range(FRAGMENTS))
            run.until(lambda: {x["slice"] for x in run.commits(SHARD)} == every, "all slices")
            proxy.slow(READS.pattern, READ_SECONDS)
            run.kill(SHARD, then=proxy.lines.clear)
            first, *_ = run.until(
                lambda: [x for x in run.commits(SHARD) if x["epoch"] > 1], "a commit"
            )
            read = {found[1] for line in [*proxy.lines] if (found := READS.match(line))}
            run.until(
                lambda: {x["slice"] for x in run.commits(SHARD) if x["epoch"] > 1} == every,
                "commits of all slices",
            )
            code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    check_law(out)
    assert not any(line.get("recovered") for line in commits(out))  # it lost nothing
    sys.stderr.write(f"slice {first['slice']} is committed, reads begun: {len(read)}\n")
    assert 1 <= len(read) <= 5  # the fifth is under way at most
