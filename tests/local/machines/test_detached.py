"""A server and a machine in the background: no terminal, no token, one at a time in a folder."""

from pathlib import Path

from atoll_operator.local import run_folder
from local.command import TINY, commits
from local.leftovers import check_none_is_left, lives
from local.machines.commands import Machine, commands_in
from local.machines.test_machines import TWO, steps


def holder(found: Machine) -> int:
    """The process in the background that a command has named."""
    assert found.end() == 0, found.logs()
    pid = run_folder.holder(found.out)
    assert pid is not None
    assert f"in the background as process {pid}" in found.text()
    return pid


def check_ended(found: Machine, pid: int) -> None:
    assert found.end() == 0, found.logs()
    assert not lives(pid)


def test_a_server_and_a_machine_train_in_the_background_until_they_are_stopped(
    tmp_path: Path,
) -> None:
    out, state = tmp_path / "served", tmp_path / "house-1"
    with commands_in(tmp_path) as here:
        try:
            server = here.serve(TINY, *TWO, *steps(100_000), "--detach")
            serving = holder(server)
            line = server.text()  # on the terminal, and machines may enter now
            joining = holder(here.join(line, "house-1", "--region", "us-east", "--detach"))
            assert "--token" not in Path(f"/proc/{joining}/cmdline").read_text()
            other = here.join(line, "house-2", "--region", "eu-west")
            other.until(lambda: commits(out), "commits of their work")
            for pid, second in (
                (serving, here.atoll(out, "serve", out, "--detach")),
                (joining, here.join("", "house-1", "--detach")),
            ):
                assert second.end() != 0
                assert f"is in use by another atoll command (process {pid})" in second.text()
        finally:
            stopping = [here.join("", "house-1", "--stop"), here.atoll(out, "serve", out, "--stop")]
        for each, pid in zip(stopping, (joining, serving), strict=True):
            check_ended(each, pid)
        assert "interrupted" in (out / "serve.log").read_text()
        assert "learners leave in order" in (state / "join.log").read_text()
        check_none_is_left(state)
        check_none_is_left(out)
