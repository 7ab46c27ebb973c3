"""Which script trains: here by the words of `atoll serve`, on other machines by those of join."""

import json
from pathlib import Path

from local.machines.commands import commands_in
from local.machines.test_machines import merged

JOB = """
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: lab}
spec:
  steps: 1000000
  regions: [{name: us}, {name: eu}]
  syncer: {startSeconds: 0}
  sync: {fragments: 1, period: 4, overlap: 1, quorum: 1}
"""
SCRIPT = """
import sys, time
import atoll, torch

job = atoll.job()
torch.manual_seed(job.seed)
model = torch.nn.Linear(8, int(sys.argv[1]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with atoll.Learner(model, optimizer) as learner:
    learner.follow(optimizer, tokens=4, loss=lambda: loss)
    while not learner.finished:
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
"""


def test_the_script_trains_here_and_a_machine_with_another_model_is_told_on_the_server(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text(SCRIPT)
    with commands_in(tmp_path) as here:
        server = here.serve(tmp_path / "job.yaml", "--here", "us", "--", "train.py", 3)
        line = server.says("atoll join")
        server.until(lambda: merged(server.out) == {"us-0"}, "a merge of the script")
        assert "built-in" not in server.text()
        eu = here.join(line, "house", "--region", "eu", "--", "train.py", 5)
        assert eu.end() == 1, eu.text()
        said = server.says("eu-0 of machine house is refused for good: ")
        assert "another model than this run's, which us-0 brought: " in said
        assert here.atoll(tmp_path, "stop", server.out).end() == 0
        assert server.end() == 4, server.logs()
        assert "; refused for good: eu-0 (--allow-refused: 0); exit code 4; " in server.text()
    summary = json.loads((server.out / "summary.json").read_text())
    assert [*summary["refused"]] == ["eu-0"]
