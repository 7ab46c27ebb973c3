"""A run is interrupted, gone on with and interrupted again: all say the same of its tokens."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from atoll_operator.local.folder.run_files import read_lines
from local.background import Running, running

SCRIPT = Path(__file__).parents[1] / "atoll_run" / "cli_script.py"
ENDLESS = ("--learners", "2", "--steps", "1000000")


def told(out: Path) -> int:
    """Tokens, as `atoll status` tells them; 0 while it tells of none."""
    command = [str(Path(sys.executable).with_name("atoll")), "status", str(out)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"([\d,]+) tokens", shown)
    return int(found[1].replace(",", "")) if found else 0


def stopped(run: Running) -> int:
    """Ctrl-C after some commits; the tokens of which status and summary tell alike."""
    before = len(run.commits(0))
    run.until(lambda: len(run.commits(0)) >= before + 3, "commits")
    code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    tokens = json.loads((run.out / "summary.json").read_text())["tokens"]["trained"]
    assert told(run.out) == tokens
    return int(tokens)


def test_status_summary_and_tape_tell_of_the_whole_run_also_when_it_was_resumed_rule_35(
    tmp_path: Path,
) -> None:
    """Status fell from 8,392 to 472, while the summary said 10,112."""
    out = tmp_path / "out"
    slow = ("--", "--pause", "0.02")
    with running(SCRIPT, out, *ENDLESS, *slow) as run:
        first = stopped(run)
    merged = len(run.commits(0))
    with running(SCRIPT, out, *ENDLESS, "--resume", *slow) as run:
        run.until(lambda: len(run.commits(0)) > merged, "a commit")
        run.until(lambda: told(out) > first, "tokens")
        second = stopped(run)
    assert second > first > 0
    lines = read_lines(out / "syncer" / "0.tape.jsonl")
    counts = [line["tokens"] for line in lines if line.get("event") == "commit"]
    assert counts == sorted(counts)
    assert counts[merged - 1] <= first < counts[merged]
    assert counts[-1] <= second
