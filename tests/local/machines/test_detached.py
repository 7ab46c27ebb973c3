"""A machine whose learners train in the background: no terminal, no token, one at a time."""

from pathlib import Path

from atoll_operator.local.folder import run_lock
from local.command import TINY, commits
from local.leftovers import check_none_is_left, lives
from local.machines.commands import commands_in
from local.machines.test_machines import TWO, steps


def test_a_machine_trains_in_the_background_until_it_is_stopped(tmp_path: Path) -> None:
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(100_000))
        line = server.says("--token")
        away = here.join(line, "house-1", "--region", "us-east", "--detach")
        assert away.end() == 0, away.logs()
        assert "house-1 of job tiny: us-east-0" in away.text()
        pid = run_lock.holder(away.out)
        assert pid is not None
        assert f"in the background as process {pid}" in away.text()
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            assert "--token" not in words
            server.until(lambda: commits(server.out), "commits of its work")
            second = here.join("", "house-1", "--detach")
            assert second.end() != 0
            assert f"is in use by another atoll command (process {pid})" in second.text()
        finally:
            stopped = here.join("", "house-1", "--stop")
            assert stopped.end() == 0, stopped.logs()
        assert not lives(pid)
        assert "learners leave in order" in (away.out / "join.log").read_text()
        check_none_is_left(away.out)
