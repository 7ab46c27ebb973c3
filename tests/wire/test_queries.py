"""Every query of the alerts and of the dashboard, asked of Prometheus' own storage and engine.

They read what a real shard exports before and after a commit, and an operator's registry.
`tests/chart/promql` is the program that holds the samples; Go builds it once, in some minutes.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from atoll_operator.kube.metrics import Metrics
from chart.shown import filled, panels, rules
from wire.fixtures import SECONDS_MAX, first_commit, peer, shard, until

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = TESTS / "chart/promql"
OPERATOR = {"namespace": "atoll-system", "pod": "atoll-operator-1"}
SHARD = {"namespace": "team", "pod": "wire-syncer-0", "training_job": "wire", "shard": "0"}
FIRST_SECONDS = 480.0  # the first scrape is so old
INTERVAL = "15m"
QUIET = {"Trouble", "Life left of certificates"}  # panels that show nothing of this shard

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def promql() -> Path:
    """Return the program, built once for each version of its source."""
    sources = sorted(PROGRAM.iterdir())
    key = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "atoll" / f"promql-{key}"
    program = folder / "promql"
    if not program.exists():
        if shutil.which("go") is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no Go")
        shutil.copytree(PROGRAM, folder, dirs_exist_ok=True)
        done = subprocess.run(
            ["go", "build", "-mod=mod", "-buildvcs=false", "-o", str(program), "."],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return what a shard exports before and after a commit, with learners that still train."""
    folder = tmp_path_factory.mktemp("shard")

    def scrape() -> str:
        address = f"http://127.0.0.1:{served.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=SECONDS_MAX) as reply:
            return str(reply.read().decode())

    async def scenario() -> str:
        async with peer(served.endpoint, "here-0") as learner:
            await first_commit(served, learner)
            async with peer(served.endpoint, "here-1") as bad:
                assert (await bad.join()).HasField("welcome")
                await bad.send(bad.frames(0))  # a seed that nobody asked for
                await bad.until("end")
            training = 'atoll_syncer_slots{state="Training"} 1.0'
            await until(lambda: training in scrape())
            return scrape()

    with shard(folder) as served:
        before = scrape()
        return before, asyncio.run(scenario())


def operator(troubled: bool) -> tuple[str, str]:
    """Return what an operator exports at first and later."""
    metrics = Metrics()
    metrics.leader.set(1)
    for role in ("learner", "shard"):
        metrics.replacements.labels(role)
        metrics.replacement_seconds.labels(role)
        metrics.deletion_seconds.labels(role)
    metrics.writes.labels("Status")
    for status in ("200", "503"):
        metrics.requests.labels("patch", status)
    metrics.show_states([("team", "Training")])
    first = generate_latest(metrics.registry).decode()
    metrics.pass_seconds.observe(0.1)
    metrics.owners.inc()
    metrics.writes.labels("Status").inc()
    metrics.requests.labels("patch", "200").inc()
    for role in ("learner", "shard"):
        metrics.replacements.labels(role).inc()
        metrics.replacement_seconds.labels(role).observe(20)
        metrics.deletion_seconds.labels(role).observe(15)
    if troubled:
        metrics.leader.set(0)
        metrics.failures.inc()
        metrics.requests.labels("patch", "503").inc()
        metrics.held.set(1)
        metrics.show_states([("team", each) for each in ("Stalled", "Degraded", "Failed")])
    return first, generate_latest(metrics.registry).decode()


def ask(
    promql: Path, queries: list[str], *programs: tuple[dict[str, str], tuple[str, str]]
) -> list[dict[str, Any]]:
    now = time.time()
    samples = [
        {"at": now - age, "labels": labels, "text": text}
        for labels, texts in programs
        for age, text in zip((FIRST_SECONDS, 0.0), texts, strict=True)
    ]
    asked = {"at": now, "scrapes": samples, "queries": queries}
    done = subprocess.run(
        [promql], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    assert not [each for each in answers if each["error"]]
    return answers


def firing(promql: Path, *programs: tuple[dict[str, str], tuple[str, str]]) -> set[str]:
    answers = ask(promql, [rule["expr"] for rule in rules()], *programs)
    return {rule["alert"] for rule, each in zip(rules(), answers, strict=True) if each["series"]}


def test_every_panel_shows_what_a_shard_and_an_operator_export(
    promql: Path, scrapes: tuple[str, str]
) -> None:
    texts = [filled(text, INTERVAL) for _, text in panels()]
    answers = ask(promql, texts, (OPERATOR, operator(troubled=False)), (SHARD, scrapes))
    shown = {title for (title, _), each in zip(panels(), answers, strict=True) if each["series"]}
    assert {title for title, _ in panels()} - shown == QUIET


def test_nothing_fires_while_all_is_well(promql: Path, scrapes: tuple[str, str]) -> None:
    found = firing(promql, (OPERATOR, operator(troubled=False)), (SHARD, scrapes))
    assert found == set()


def test_what_goes_wrong_with_the_operator_and_its_jobs_fires(
    promql: Path, scrapes: tuple[str, str]
) -> None:
    found = firing(promql, (OPERATOR, operator(troubled=True)), (SHARD, scrapes))
    assert found == {
        "AtollOperatorWithoutLeader", "AtollOperatorPassesFail", "AtollApiServerFails",
        "AtollJobStalled", "AtollJobDegraded", "AtollJobFailed", "AtollNodeLossHeld",
    }  # fmt: skip


def test_an_operator_that_nobody_can_scrape_has_no_leader(
    promql: Path, scrapes: tuple[str, str]
) -> None:
    assert firing(promql, (SHARD, scrapes)) == {"AtollOperatorWithoutLeader"}


def test_what_goes_wrong_with_shards_fires(promql: Path, scrapes: tuple[str, str]) -> None:
    refused = 'atoll_syncer_refused_peers_total{reason="other_job"}'
    last = f"{scrapes[1]}{refused} 0.0\n"  # as a shard with mutual TLS has it
    expires = "atoll_syncer_certificate_expiry_timestamp_seconds"
    troubled = last
    for name, value in (
        (expires, str(time.time() + 86_400)),
        ("atoll_syncer_late_share", "0.5"),
        ('atoll_syncer_store_troubles_total{trouble="full"}', "1.0"),
        (refused, "1.0"),
    ):
        (line,) = [each for each in last.splitlines() if each.startswith(f"{name} ")]
        troubled = troubled.replace(line, f"{name} {value}")
    found = firing(promql, (OPERATOR, operator(troubled=False)), (SHARD, (last, troubled)))
    assert found == {
        "AtollNoCommits", "AtollStoreFails", "AtollCertificateExpires", "AtollPeersRefused",
        "AtollWorkTooLate",
    }  # fmt: skip
