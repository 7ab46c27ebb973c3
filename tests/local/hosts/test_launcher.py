"""`atoll run --processes-per-learner`: the processes of a learner live and end as one."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll_operator.local.folder.run_files import read_lines
from atoll_operator.local.show.run_summary import RunResult
from local.background import LOOK_SECONDS, SECONDS_MAX, running
from local.command import ATOLL, ended
from local.hosts.launched import BATCH, DDP, FOR_EVER, incarnations, ranks_of
from local.leftovers import lives

RANKS = 2
PROCESSES = ("--processes-per-learner", str(RANKS))
BAD = """
import atoll, torch
atoll.job()
torch.distributed.init_process_group("gloo")
if torch.distributed.get_rank() == 1:
    raise atoll.SpecError("--data", "names no folder", "give one that is there")
torch.distributed.barrier()
"""


@pytest.mark.long
def test_a_rank_that_is_killed_comes_back_with_all_others_as_one_incarnation(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    with running(DDP, out, *PROCESSES, *FOR_EVER, "--learners", "2") as run:
        slots = ("local-0", "local-1")
        run.until(lambda: all(incarnations(run, slot) for slot in slots), "steps of both")
        before = {slot: run.row(slot) for slot in slots}
        old = ranks_of(before["local-1"]["pid"])
        assert sorted(old) == list(range(RANKS))
        os.kill(old[1], signal.SIGKILL)
        run.until(lambda: incarnations(run, "local-1") == {1, 2}, "the next incarnation")
        after = {slot: run.row(slot) for slot in slots}
        new = ranks_of(after["local-1"]["pid"])
        code, stderr = run.finish(signal.SIGINT)
    assert code == RunResult.INTERRUPTED, stderr
    assert after["local-0"] == before["local-0"]
    assert after["local-1"]["restarts"] == 1  # one failure for all ranks
    assert stderr.count("local-1 ended (SIGKILL) and is started again") == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*old.values(), *new.values()))
    lines = read_lines(out / "learners" / "local-1.jsonl")
    assert {line["tokens"] for line in lines if line.get("t_m")} == {BATCH * RANKS}
    log = (out / "logs" / "local-1.log").read_text()
    assert re.search(r"rank 1 on \S+ has ended \(SIGKILL\), and all ranks with it", log)
    assert "[rank0]: " in log
    assert "PET_NPROC_PER_NODE" in (out / "manifest.yaml").read_text()


@pytest.mark.fresh
@pytest.mark.long
def test_what_one_rank_says_of_bad_input_is_the_reason_of_the_run(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(BAD)
    done = ended(ATOLL, "run", script, "--out", tmp_path / "out", *PROCESSES, *FOR_EVER)
    assert done.returncode == RunResult.BAD_INPUT, done.stderr
    said = "is given up (exit code 64): --data: names no folder; give one that is there"
    assert said in done.stderr
    rows = (tmp_path / "out" / "processes.json").read_text()
    assert '"restarts": 1' not in rows  # another start cannot help


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="the system has no setpriv")
def test_the_ranks_of_a_launcher_that_is_killed_end_with_it(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "atoll_worker", "launch", "--nproc-per-node", str(RANKS)]
    script = f"echo $$ > {tmp_path}/$RANK.new; mv {tmp_path}/$RANK.new {tmp_path}/$RANK.pid; "
    with subprocess.Popen([*launch, "--", "sh", "-c", f"{script} exec sleep 600"]) as launcher:
        deadline = time.monotonic() + SECONDS_MAX
        while len(found := [*tmp_path.glob("*.pid")]) < RANKS and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        pids = [int(path.read_text()) for path in found]
        launcher.kill()
    assert len(pids) == RANKS
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    assert not any(map(lives, pids))
