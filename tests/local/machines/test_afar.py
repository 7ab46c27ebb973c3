"""A laptop with a token looks at a job of `atoll serve` and changes it, by the printed lines."""

from pathlib import Path

import pytest

from local.command import TINY, commits
from local.machines.commands import Commands, Machine, commands_in
from local.machines.test_machines import REGIONS, TWO, steps

BAD_INPUT = 2


class Laptop:
    """A person elsewhere; `place` is what was printed."""

    def __init__(self, here: Commands, server: Machine) -> None:
        self.here, self.out, self.place = here, server.out, ""

    def token(self, option: str) -> list[str]:
        """The words of the line that the server's command prints."""
        words = self._ended("tokens", self.out, option).split()
        assert words[:2] == ["atoll", "status"]
        self.place = words[2]
        return words[1:]

    def says(self, verb: str, *words: object) -> str:
        return self._ended(verb, self.place, *words)

    def refused(self, verb: str, *words: object) -> str:
        found = self.here.atoll(self.here.folder, verb, self.place, *words)
        assert found.end() == BAD_INPUT, found.text()
        return found.text()

    def _ended(self, *words: object) -> str:
        found = self.here.atoll(self.here.folder, *words)
        assert found.end() == 0, found.text()
        return found.text()


def test_a_job_is_looked_at_and_changed_from_a_laptop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "laptop"))
    with commands_in(tmp_path) as here:
        server = here.serve(TINY, *TWO, *steps(100_000))
        line = server.says("--token")
        joined = [here.join(line, f"house-{i}", "--region", r) for i, r in enumerate(REGIONS)]
        server.until(lambda: len(commits(server.out)) > 4, "commits")
        laptop = Laptop(here, server)
        look = laptop.token("--look")
        laptop._ended(*look)
        assert "tiny" in laptop.says("status")
        top = laptop.says("top")
        assert all(word in top for word in ("us-east-0", "eu-west-0", "house-1", "COMMITS"))
        assert laptop.says("logs", "shard-0", "--tail", 1).count("\n") == 1
        assert "2 learners" in laptop.says("plot", "--out", tmp_path / "loss.png")
        assert "commits" in laptop.says("plot", "--of", "rounds", "--out", tmp_path / "rounds.png")
        laptop.says("export", "--out", tmp_path / "model")
        assert list((tmp_path / "model").glob("*.safetensors"))
        assert "is to look, and not to edit" in laptop.refused("stop")
        followed = here.atoll(tmp_path, "logs", laptop.place, "-f")
        laptop._ended(*laptop.token("--edit"))
        assert "it is 90,000 steps long" in laptop.says("edit", "--steps", 90_000)
        laptop.says("suspend")
        for each in joined:
            each.says("the job is suspended")
        laptop.says("resume")
        before = len(commits(server.out))
        server.until(lambda: len(commits(server.out)) > before + 4, "commits")
        laptop.says("checkpoint", "--timeout", 60)
        laptop.says("stop")
        assert [each.end() for each in (*joined, server)] == [0, 0, 0], server.logs()
        assert followed.end() == 0, followed.text()
        assert "shard-0" in followed.text()
        assert list((server.out / "export").glob("*.safetensors"))
