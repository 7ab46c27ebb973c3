"""Who is refused over mutual TLS: real processes, in which words, how soon; nothing is merged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.environment import Env
from wire.fixtures import (
    DAY,
    ISSUER,
    SECONDS_MAX,
    Issuer,
    ShardUnderTest,
    bad_credentials,
    dialled,
    nothing_was_merged,
    put,
    status,
    tls_shard,
)
from wire.test_scrapes import scrape


def test_a_shard_refuses_what_a_learner_did_not_look_at_in_words_log_and_metric(
    served: ShardUnderTest, tmp_path: Path
) -> None:
    """A learner of another version, or an intruder, may dial without looking at its files."""
    before, wrong = scrape(served.metrics_port), bad_credentials(ISSUER)["other region"]
    _, (end,) = dialled(served.endpoint, put(tmp_path / "tls", wrong), slot=None)
    assert end.code == pb.NOT_ALLOWED
    assert "needs the certificate of the learner of region here" in end.reason
    assert str(wrong.identity) in end.reason
    said = [line for line in served.log.read_text().splitlines() if "peer refused" in line]
    lines = [json.loads(line) for line in said]
    assert lines[-1]["reason"] == end.reason
    name = "refused_peers_total other_region"
    assert scrape(served.metrics_port)[name] == before[name] + 1
    assert nothing_was_merged(served)


# ------------------------------------------------------------ a whole learner

SCRIPT = """
import sys, torch
from atoll import Learner
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Learner(model, optimizer) as learner:
    while learner.own_steps < 20:
        loss = model(torch.ones(1, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(loss=loss, tokens=1)
print("trained", learner.own_steps)
"""


def learner(folder: Path, endpoint: str, tls: Path | None) -> subprocess.CompletedProcess[str]:
    """A script of the user's own, as a process of the job."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    variables = {
        Env.RUN_FILE: str(folder / "run.json"),
        Env.ENDPOINTS: endpoint,
        Env.SLOT: "here-0",
        Env.TLS_DIR: str(tls or ""),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_a_script_trains_over_tls_and_ends_with_64_or_75_where_it_cannot(tmp_path: Path) -> None:
    issuer = Issuer()
    with tls_shard(tmp_path, issuer) as served:
        for credentials, code, words in (
            (issuer.leaf(), 0, ""),
            (issuer.leaf(region="elsewhere"), 64, "tls.crt: is that of region elsewhere, and"),
            (issuer.leaf(begun=31 * DAY), 75, "tls.crt: expired at 20"),
            (None, 64, "the shard serves TLS alone, and this process has no credentials"),
        ):
            tls = put(tmp_path / "learner", credentials) if credentials else None
            done = learner(tmp_path, served.endpoint, tls)
            assert done.returncode == code, done.stderr
            assert words in done.stderr
            assert ("trained 20" in done.stdout) == (code == 0)
        assert status(served.endpoint, issuer.leaf()).slots[0].slot == "here-0"
