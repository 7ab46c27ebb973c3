"""A laptop looks at a job over the real port: what it sees, and what it never gets."""

import io
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.cli.tokens import TokenWanted, listed, made, revoked
from atoll_operator.local.folder import run_lock
from atoll_operator.local.folder.run_files import MANIFEST_FILE, SLOTS_FILE, STATUS_FILE
from atoll_operator.local.supervision.ports import free_ports
from atoll_operator.machines.joined.entering import enter
from atoll_operator.machines.looking import kept
from atoll_operator.machines.looking.served import Copy, connect
from atoll_operator.machines.server import looking
from atoll_operator.machines.sights import shows
from atoll_operator.machines.token import Token
from atoll_protos.errors import SpecError
from atoll_protos.network.channels import Folder, ServerFiles
from atoll_protos.network.credentials import Credentials
from atoll_protos.network.services import Service, add_handlers
from unit.machines.laptop_side import atoll, line, until, with_run
from unit.machines.served import JOB, Served

SECRET = "DB_PASSWORD=hunter2"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with with_run(tmp_path, monkeypatch) as found:
        yield found


def test_the_printed_line_is_a_whole_command_and_its_token_is_kept(served: Served) -> None:
    words = line(served, look=True).split()
    assert words[:3] == ["atoll", "status", served.place]
    assert "tiny" in atoll(*words[1:])
    assert "tiny" in atoll("status", served.place)
    (file,) = kept._folder().iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    port = served.place.rpartition(":")[2]
    assert "tiny" in atoll("status", f"localhost:{port}")  # by its certificate


def test_without_a_token_it_says_how_to_get_one(served: Served) -> None:
    with pytest.raises(SpecError, match=r"--token: is missing.*`atoll tokens DIR --look`"):
        atoll("status", served.place)
    (port,) = free_ports(1)
    with pytest.raises(SpecError, match="nothing answers"):
        atoll("status", f"127.0.0.1:{port}")
    with pytest.raises(SpecError, match="--token: is for HOST:PORT, and tiny is none"):
        atoll("status", "tiny", "--token", "x")


def test_logs_come_by_their_last_lines_and_follow_until_the_job_is_over(served: Served) -> None:
    token = Token.parse(line(served, look=True).split()[-1])
    job = connect(served.place, str(token))
    atoll("logs", served.place, "shard-0", "--token", str(token))
    assert atoll("logs", served.place, "shard-0", "--tail", "2") == "second\nthird\n"
    with pytest.raises(SpecError, match=r"us-0: is not .* own machine; it has shard-0; the log of"):
        atoll("logs", served.place, "us-0")
    log = served.out / "logs/shard-0.log"
    with job.copy("logs", follow=True, tail=1) as copy:
        mine = copy / "logs/shard-0.log"
        assert mine.read_text() == "third\n"
        with log.open("a") as file:
            file.write("fourth\n")
        until(lambda: mine.read_text() == "third\nfourth\n")
        (served.out / "logs/evaluator.log").write_text("new\n")
        until((copy / "logs/evaluator.log").exists)
        log.write_text("again\n")  # shorter than it was: from its beginning
        until(lambda: mine.read_text() == "again\n")
        assert run_lock.is_run(copy)
        served.server.looking.over.set()
        until(lambda: not run_lock.is_run(copy))


def test_a_token_that_is_revoked_ends_what_it_sees(served: Served) -> None:
    token = line(served, look=True).split()[-1]
    job = connect(served.place, token)
    with ExitStack() as open_:
        copy = open_.enter_context(job.copy("logs", follow=True))
        revoked(served.out, Token.parse(token).name)
        until(lambda: not run_lock.is_run(copy))
        with pytest.raises(SpecError, match=r"it was revoked.*`atoll tokens DIR --look` makes"):
            open_.close()


@pytest.mark.parametrize(
    ("of", "may"),
    [("join", set()), ("look", {"look"}), ("edit", {"look", "edit"})],
)
def test_a_token_is_good_for_nothing_else(
    served: Served, tmp_path: Path, of: str, may: set[str]
) -> None:
    wanted = {} if of == "join" else {of: True}
    hours = {"hours": 1.0}
    text = made(served.out, TokenWanted(**wanted, **hours), time.time()).split()[-1]  # type: ignore[arg-type]
    token = Token.parse(text)
    attempts: dict[str, Callable[[], str]] = {
        "look": lambda: atoll("status", served.place, "--token", text),
        "edit": lambda: atoll("edit", served.place, "--token", text, "--steps", "70"),
    }
    for what, attempt in attempts.items():
        if what in may:
            attempt()
        else:
            with pytest.raises(SpecError, match=f"{token.name} is to {of}, and not to {what}"):
                attempt()
    assert ("steps: 70" in (served.out / MANIFEST_FILE).read_text()) == ("edit" in may)
    options = served.options(tmp_path / "a", token, region="us")
    if of == "join":
        enter(options)
        return
    with pytest.raises(SpecError, match=f"is to {of}, and not to join; .*`atoll tokens DIR` makes"):
        enter(options)
    assert served.server.book.read().machines == ()
    assert re.search(rf"{token.name} +{of} +- ", listed(served.out, time.time()))


def test_tokens_for_people_are_no_tokens_for_machines(served: Served) -> None:
    for wanted, words in (
        (TokenWanted(look=True, edit=True), "--look: is given with --edit"),
        (TokenWanted(look=True, region="us"), "--region: is of a token that brings machines in"),
        (TokenWanted(edit=True, uses=1), "--uses: is of a token that brings machines in"),
    ):
        with pytest.raises(SpecError, match=words):
            made(served.out, wanted, time.time())


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_no_key_no_manifest_and_no_link_leaves_the_machine(served: Served) -> None:
    (served.out / "manifest.yaml").write_text(JOB + f"# {SECRET}\n")
    private = served.out / "machines"
    token = line(served, look=True).split()[-1]
    (served.out / "logs/link.log").symlink_to(private / "authority.json")
    (served.out / "logs/up.log").symlink_to("../machines/join.json")
    (served.out / "logs/credentials.log").mkdir()
    (served.out / "learners/tls.jsonl").symlink_to(private / "tls/shard/tls.key")
    (served.out / "syncer").rename(served.out / "elsewhere")
    (served.out / "elsewhere/1.tape.jsonl").write_bytes((private / "register.json").read_bytes())
    (served.out / "syncer").symlink_to(served.out / "elsewhere")
    (served.out / STATUS_FILE).unlink()
    (served.out / STATUS_FILE).symlink_to(private / "server.json")
    job = connect(served.place, token)
    seen = {}
    for of in ("status", "logs", "curves"):
        with job.copy(of) as copy:
            files = [path for path in copy.rglob("*") if path.is_file()]
            seen[of] = {str(path.relative_to(copy)) for path in files} - {"run.lock"}
            text = everything(copy)
        assert SECRET.encode() not in text
        assert b"PRIVATE KEY" not in text
        assert b"secret_hash" not in text
        assert b'"place"' not in text
    assert seen == {
        "status": {"run.json"},
        "logs": {"run.json", "processes.json", "logs/shard-0.log"},
        "curves": {"run.json", "evaluations.jsonl", "learners/here-0.jsonl"},
    }
    asked = pb.LookRequest(sight=17)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="what is"), job._look(asked):
        pass


@pytest.mark.parametrize(
    "name",
    [
        "../run.json",
        "/etc/passwd",
        "logs/../machines/server.json",
        "logs/a/b.log",
        "logs//a.log",
        "./run.json",
        "machines/server.json",
        "logs/.log/../x.log",
        "manifest.yaml",
        "learners/x.jsonl",
        SLOTS_FILE,
    ],
)
def test_what_a_server_sends_unasked_is_not_written(tmp_path: Path, name: str) -> None:
    assert not shows(pb.SIGHT_LOGS, name)
    copy = Copy(tmp_path / "copy", pb.SIGHT_LOGS, ExitStack())
    piece = pb.LookReply(file=pb.FilePiece(name=name, data=b"x", begins=True))
    with pytest.raises(SpecError, match="unasked"):
        copy.begin(iter([piece]))
    assert not list(tmp_path.rglob("*"))


def test_shards_are_asked_for_those_who_look(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port, silent) = free_ports(2)
    served.server._keep(time.monotonic() + 100, served.said.append)
    folder = str(served.out / "machines/tls/shard")
    files = ServerFiles(Folder(path=folder), Credentials.read(folder))
    server = grpc.server(ThreadPoolExecutor(1))
    asked = list[float]()

    class Shard:
        def Status(self, request: pb.StatusRequest, context: object) -> pb.StatusReply:  # noqa: N802
            asked.append(time.monotonic())
            return pb.StatusReply(tick=41)

    add_handlers(Service.SYNCER, Shard(), server)
    server.add_secure_port(f"127.0.0.1:{port}", files.credentials())
    server.start()
    rows = [
        f'{{"role": "shard", "shard": {i}, "endpoint": "127.0.0.1:{p}"}}'
        for i, p in enumerate((port, silent))
    ]
    (served.out / "processes.json").write_text(f"[{', '.join(rows)}]")
    monkeypatch.setattr(looking, "SHARDS_SECONDS", 1000.0)
    try:
        text = atoll("top", served.place, *line(served, look=True).split()[3:])
        assert "41" in text
        assert f"127.0.0.1:{silent} does not answer" in text
        assert atoll("top", served.place) == text
        assert len(asked) == 1
    finally:
        server.stop(None).wait()


def test_the_model_comes_whole_or_not_at_all(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, size = io.BytesIO(), 3 << 20
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for name, data in (("m.safetensors.index.json", b"{}"), ("m.safetensors", bytes(size))):
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (tmp_path / "model.tar").write_bytes(stream.getvalue())
    program = (
        f"import sys; sys.stdout.buffer.write(open({str(tmp_path / 'model.tar')!r}, 'rb').read())"
    )
    fails = "; sys.stdout.flush(); sys.stderr.write('shard 0: away\\n'); sys.exit(75)"
    words = ("export", served.place, "--out", str(tmp_path / "out"))
    token = line(served, look=True).split()[3:]

    def exports(code: str) -> None:
        monkeypatch.setattr(looking, "exporting", lambda *_: [sys.executable, "-c", code])

    exports(program + fails)
    with pytest.raises(SpecError, match="shard 0: away; try again"):
        atoll(*words, *token)
    assert not (tmp_path / "out").exists()
    exports(program)
    atoll(*words)
    found = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert found == {"m.safetensors.index.json": 2, "m.safetensors": size}
    assert not list(tmp_path.glob(".out*"))


def test_a_job_is_changed_from_afar_as_from_its_folder(served: Served) -> None:
    words = line(served, edit=True).split()
    atoll(*words[1:])
    assert "us has 3 learners, it had 2" in atoll("edit", served.place, "--learners", "us=3")
    assert "will suspend" in atoll("suspend", served.place)
    manifest = served.out / MANIFEST_FILE
    assert "suspend: true" in manifest.read_text()
    atoll("resume", served.place)
    assert "suspend: true" not in manifest.read_text()
    assert [each for each in served.said if "us has 3 learners" in each]
    lines = connect(served.place, "").edit({"mars": 1}, None, None)
    assert lines[0] == "mars is a new region; its learners: 1"
    before = manifest.read_text()
    for region in ("us.image=x", "us.env", "../us", ""):
        with pytest.raises(SpecError, match="is no region"):
            connect(served.place, "").edit({region: 1}, None, None)
    assert manifest.read_text() == before
    assert "will end" in atoll("stop", served.place)
    connect(served.place, "").ask_checkpoint(7)
    assert (served.out / "checkpoint.txt").read_text() == "7\n"
