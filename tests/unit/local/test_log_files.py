"""The logs of a run folder: of one process or all, from their end or their beginning, and on."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.local import run_folder
from atoll_operator.local.run_files import Growing
from atoll_operator.local.run_folder import lines
from atoll_protos.errors import SpecError

ROWS = """[{"role": "shard", "name": "shard-0"}, {"role": "learner", "slot": "us-0"},
{"role": "learner", "slot": "eu-0"}, {"role": "evaluator", "slot": "evaluator"}]"""
SECONDS_MAX = 60.0


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run of which a shard and a learner have written."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "processes.json").write_text(ROWS)
    write(tmp_path, "us-0", "one\ntwo\nthree\n")
    write(tmp_path, "shard-0", '{"event": "ready"}\n')
    return tmp_path


def write(out: Path, process: str, text: str) -> None:
    with (out / "logs" / f"{process}.log").open("a") as file:
        file.write(text)


def test_all_processes_or_one_and_all_lines_or_the_last(out: Path) -> None:
    assert list(lines(out, "", tail=None, follow=False)) == [
        ("shard-0", '{"event": "ready"}'),
        *(("us-0", word) for word in ("one", "two", "three")),
    ]
    assert list(lines(out, "us-0", tail=2, follow=False)) == [("us-0", "two"), ("us-0", "three")]
    assert list(lines(out, "us-0", tail=0, follow=False)) == []
    assert list(lines(out, "eu-0", tail=None, follow=False)) == []  # has written nothing yet
    write(out, "us-0", "half a line")
    assert list(lines(out, "us-0", tail=None, follow=False))[-1] == ("us-0", "half a line")
    with pytest.raises(SpecError, match=r"us-9: is not a process .*evaluator, shard-0, us-0"):
        list(lines(out, "us-9", tail=None, follow=False))


def test_a_slot_stands_for_all_hosts_of_its_learner(out: Path) -> None:
    hosts = [(slot, host) for slot in ("a-0", "a-0-1") for host in (0, 1)]
    rows = [{"role": "learner", "slot": slot, "host": host} for slot, host in hosts]
    (out / "processes.json").write_text(json.dumps(rows))
    for slot, host in hosts:
        write(out, f"{slot}-{host}", f"{slot} {host}\n")
    found = [*lines(out, "a-0", tail=None, follow=False)]
    assert found == [("a-0-0", "a-0 0"), ("a-0-1", "a-0 1")]
    assert [*lines(out, "a-0-1-1", tail=None, follow=False)] == [("a-0-1-1", "a-0-1 1")]


def test_a_character_that_is_cut_in_two_when_it_is_looked_at_is_shown_whole(tmp_path: Path) -> None:
    path = tmp_path / "us-0.log"
    text = "Größe\n".encode()
    path.write_bytes(text[:3])  # ends in the middle of a letter
    file = Growing(path)
    assert list(file.read()) == []
    path.write_bytes(text)
    assert list(file.read()) == ["Größe"]


def test_following_goes_on_through_a_restart_and_ends_with_the_run(out: Path) -> None:
    with run_folder.running(out):
        following = lines(out, "", tail=1, follow=True)
        assert [next(following), next(following)] == [
            ("shard-0", '{"event": "ready"}'),
            ("us-0", "three"),
        ]
        write(out, "us-0", "fo")
        threading.Timer(0.3, write, (out, "us-0", "ur\nstarted again\n")).start()
        assert [next(following), next(following)] == [("us-0", "four"), ("us-0", "started again")]
        write(out, "eu-0", "late\n")  # a process that had no log yet
        assert next(following) == ("eu-0", "late")
        write(out, "shard-0", "the last word")
    assert rest(following) == [("shard-0", "the last word")]


def rest(following: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """What comes until it ends, which it must."""
    found: list[tuple[str, str]] = []
    reader = threading.Thread(target=lambda: found.extend(following), daemon=True)
    reader.start()
    reader.join(SECONDS_MAX)
    assert not reader.is_alive()
    return found


def test_lines_have_a_prefix_without_colours_when_there_are_several_processes(out: Path) -> None:
    shown = CliRunner().invoke(cli.app, ["logs", str(out), "--tail", "1"]).output
    assert shown == '[shard-0] {"event": "ready"}\n[us-0] three\n'
    one = CliRunner().invoke(cli.app, ["logs", str(out), "us-0", "--tail", "1"]).output
    assert one == "three\n"


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (
            "status no/such",
            "give the folder of a run; docs/operating.md has kubectl's commands",
        ),
        ("status A_b", "is not there"),
        ("logs .", "holds no run"),
        ("logs tiny", "is not there; give the folder of a run; docs/operating.md has kubectl's"),
        ("suspend tiny", "is not there; give the folder of a run; docs/operating.md has kubectl's"),
    ],
)
def test_what_is_neither_a_folder_nor_a_name_of_a_job_is_refused(
    which: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(cli.app, which.split())
    assert isinstance(found.exception, SpecError)
    assert words in str(found.exception)


def test_a_shell_is_offered_the_processes_of_the_folder(out: Path) -> None:
    words = f"atoll logs {out} us"
    asked = {"_ATOLL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    offered = CliRunner().invoke(cli.app, env=asked, prog_name="atoll")
    assert offered.output.split() == ["us-0"]
