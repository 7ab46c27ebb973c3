"""A store that answers after seconds: two processes of a shard do not take it from each other."""

import signal
import sys
import time
from pathlib import Path

import pytest

from local.background import running
from local.command import LIGHT, TINY, commits
from local.failures.test_failover import served
from local.law import check_law
from local.stores.fault_proxy import FaultProxy
from local.stores.servers import Server

SLOW_SECONDS = 300.0
ANSWER_SECONDS = 3.0
TERMS_MAX = 6
SHARDS = 2


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_store_that_answers_after_three_seconds_makes_few_terms_and_loses_nothing_rule_20(
    moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with FaultProxy(moto.port).running() as proxy:
        steady = LIGHT[1].replace("step-milliseconds-min=30", "step-milliseconds-min=200")
        settings = (
            *("--standby", "--set", steady, "--set", "spec.evaluator="),
            *("--set", "spec.steps=1000000", "--set", "spec.sync.fragments=4"),
            *moto.place().at(proxy.port).used(monkeypatch),
        )
        with running(TINY, out, *settings) as run:

            def all_commit() -> None:
                before = [len(run.commits(n)) for n in range(SHARDS)]
                run.until(
                    lambda: all(len(run.commits(n)) > before[n] + 8 for n in range(SHARDS)),
                    "commits of all shards",
                )

            all_commit()
            before = len(commits(out))
            proxy.delay_seconds = ANSWER_SECONDS / 2
            time.sleep(SLOW_SECONDS)  # it is the time in which the store is slow
            meanwhile = len(commits(out)) - before
            proxy.heal()
            all_commit()
            code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    check_law(out)
    terms = {shard: [*served(out, shard)] for shard in range(SHARDS)}
    sys.stderr.write(f"terms {terms}, {meanwhile} commits meanwhile\n")
    assert all(len(each) <= TERMS_MAX for each in terms.values()), terms
    assert meanwhile > 0
