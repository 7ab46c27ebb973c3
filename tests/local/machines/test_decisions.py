"""A job of `atoll serve` is looked at and changed on the server's machine, by its folder."""

from pathlib import Path

from local.command import TINY, commits
from local.machines.commands import Commands, commands_in
from local.machines.test_machines import REGIONS, TWO, steps


def says(here: Commands, *words: object) -> str:
    command = here.atoll(here.folder, *words)
    assert command.end() == 0, command.text()
    return command.text()


def test_a_job_is_looked_at_and_changed_and_its_machines_follow(tmp_path: Path) -> None:
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(100_000))
        line = server.says("ATOLL_TOKEN=")
        joined = [here.join(line, f"house-{i}", "--region", r) for i, r in enumerate(REGIONS)]
        server.until(lambda: len(commits(server.out)) > 4, "commits")
        assert "tiny" in says(here, "status", server.out)
        top = says(here, "top", server.out)
        assert all(word in top for word in ("us-east-0", "eu-west-0", "house-1", "COMMITS"))
        says(here, "export", server.out, "--out", tmp_path / "model")
        assert list((tmp_path / "model").glob("*.safetensors"))
        followed = here.atoll(tmp_path, "logs", server.out, "-f")
        changed = says(here, "edit", server.out, "--steps", 90_000)
        assert "it is 90,000 steps long" in changed
        says(here, "suspend", server.out)
        for machine in joined:
            machine.says("the job is suspended")
        says(here, "resume", server.out)
        before = len(commits(server.out))
        server.until(lambda: len(commits(server.out)) > before + 4, "commits")
        says(here, "checkpoint", server.out, "--timeout", 60)
        says(here, "stop", server.out)
        assert [machine.end() for machine in (*joined, server)] == [0, 0, 0], server.logs()
        assert followed.end() == 0, followed.text()
        assert "shard-0" in followed.text()
        assert list((server.out / "export").glob("*.safetensors"))
