"""The commands of docs/machines.md, as they are printed there."""

import re
import shlex
from pathlib import Path

from local.command import TESTS, TINY, commits
from local.leftovers import check_none_is_left
from local.machines.commands import commands_in

PAGE = (TESTS.parent / "docs" / "machines.md").read_text()
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r"ATOLL_TOKEN=(\S+) ")
SCRIPT = "from bytegpt.train import main\n\nmain(['--batch=2', '--context=32'])\n"


def commands() -> list[list[str]]:
    """Those of a job without a cluster."""
    lines = "".join(BLOCK.findall(PAGE)).splitlines()
    words = [
        shlex.split(line.partition("atoll ")[2], comments=True)
        for line in lines
        if line.startswith(("atoll ", "ATOLL_TOKEN="))
    ]
    return [each for each in words if not {"credentials", "--credentials"} & {*each}]


def test_the_commands_of_the_page_train_a_model(tmp_path: Path) -> None:
    serve, join, make, tokens, revoke = commands()
    (tmp_path / "job.yaml").write_text(TINY.read_text())
    (tmp_path / "train.py").write_text(SCRIPT)
    out = tmp_path / "runs" / "tiny"
    with commands_in(tmp_path) as here:
        listen = f"127.0.0.1:{here.port}"
        own = ("--here", "us-east", "--here", "ap-south", "--output", "lines")
        few = ("--set", "spec.steps=100000", "--set", "spec.evaluator=")
        words = [listen if word == "0.0.0.0:7700" else word for word in serve]
        server = here.atoll(out, *words, *own, *few)
        token = TOKEN.search(server.says("ATOLL_TOKEN="))
        assert token is not None
        state = ("--state", tmp_path / "state", "--name", "house-2")
        at = join.index("203.0.113.7:7700")
        words = [*join[:at], listen, "--token", token[1], *join[at + 1 :]]
        dashes = words.index("--")
        house = here.atoll(tmp_path / "state", *words[:dashes], *state, *words[dashes:])
        server.until(lambda: "eu-west-0" in merged(out), "a merge with its work")

        made = here.atoll(out, *make)
        assert made.end() == 0
        assert f"atoll join {listen}\n" in made.text()
        known = here.atoll(out, *tokens)
        assert known.end() == 0
        assert re.search(r"house-2 +eu-west +eu-west-0", known.text())
        assert here.atoll(out, *revoke).end() == 0
        assert house.end() == 1
        check_none_is_left(house.out)


def merged(out: Path) -> set[str]:
    return {part["slot"] for each in commits(out) for part in each["participants"]}
