"""What goes wrong on either machine costs no slot, refuses no machine and ends no training."""

import errno
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.process_inputs import expected
from atoll_operator.cli.tokens import listed
from atoll_operator.local import run_folder
from atoll_operator.local.child import Child
from atoll_operator.local.local_status import JobNow, JobState
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.startable import free_ports
from atoll_operator.machines import bundle
from atoll_operator.machines.bundle import Token, make_private, must_take, state_root
from atoll_operator.machines.joined.joining import JoinedRun
from atoll_operator.machines.joined.server_link import certificate_at
from atoll_operator.machines.server import join_port, register
from atoll_operator.machines.server.register import JobCertificates
from atoll_operator.machines.server.serving import serving_in
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import Credentials
from unit.local.test_local_status import reply, snapshot
from unit.machines.served import JOB, Served, enter, watcher_of

OF_ANOTHER = str(Token.new("0" * 64))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_register_that_cannot_be_read_refuses_no_machine_and_ends_no_run(
    served: Served, tmp_path: Path
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    watcher = watcher_of(folder, machine)
    before = served.server.listed(expected(served.job))
    assert [each.name for each in before.machines] == ["house"]
    file = served.out / "machines" / register.REGISTER_FILE
    text = file.read_text()
    file.write_text(text.replace(",", ";", 1))
    for _ in range(2):
        assert not watcher.source.renew(watcher)  # and no refusal is raised
        assert served.server.listed(expected(served.job)) == before
    (said,) = [each for each in served.said if "cannot be read" in each]
    assert str(file) in said
    with pytest.raises(SpecError, match="its register cannot be read"):
        enter(served.options(tmp_path / "b", Token.new(watcher.source.link.digest)))  # type: ignore[union-attr]
    file.write_text(text)
    watcher.source.renew(watcher)


def test_a_server_without_room_lets_nobody_in_and_says_so(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = served.token()
    monkeypatch.setattr(register, "write_private", full)
    with pytest.raises(SpecError, match=r"trouble on its machine \(No space left on device"):
        enter(served.options(tmp_path / "a", token))


def test_a_machine_that_cannot_keep_its_state_takes_no_slot(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="give a writable folder"):
        enter(served.options(tmp_path / "file" / "a", served.token()))
    with monkeypatch.context() as patch:
        patch.setattr(bundle, "write_private", full)
        with pytest.raises(SpecError, match="No space left on device; make room"):
            enter(served.options(tmp_path / "a", served.token()))
    assert "us-0" not in listed(served.out, time.time())


def test_a_renewal_without_room_is_tried_again(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, machine, _ = enter(served.options(tmp_path / "a", served.token()))
    watcher = watcher_of(folder, machine)
    watcher.source.renew(watcher)
    later = time.time() + 86_400 * 21
    clock = SimpleNamespace(time=lambda: later, monotonic=time.monotonic)
    watcher.clock = clock.time
    monkeypatch.setattr(join_port, "time", clock)
    before = Credentials.read(folder / "tls")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", lambda *_, **__: full())
        watcher.look()
        patch.setattr(JobCertificates, "keep", full)
        served.server.kept_at = -1e6
        served.server.machines(snapshot([reply()]))
    assert watcher.refusal is None
    assert Credentials.read(folder / "tls") == before
    assert [each for each in served.said if "certificates cannot be renewed" in each]
    watcher.source.renew(watcher)
    assert Credentials.read(folder / "tls") != before


def test_a_file_for_which_the_disk_has_no_room_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"):
        bundle.write_private(tmp_path / "a", b"1")
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (there := tmp_path / "there").mkdir()
    there.chmod(0o755)
    assert make_private(there).stat().st_mode & 0o777 == 0o755
    assert make_private(tmp_path / "new").stat().st_mode & 0o777 == 0o700
    must_take(there)
    assert there.stat().st_mode & 0o777 == 0o755
    must_take(tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_server_that_is_started_again_keeps_room_for_its_machines(
    served: Served, tmp_path: Path
) -> None:
    enter(served.options(tmp_path / "a", served.token(), learners=2))
    fewer = parse(JOB.replace("learners: 2", "learners: 1"))
    with pytest.raises(SpecError, match=r"machine house has us-1; .* --revoke house"):
        serving_in(served.out, fewer, listen="", advertise="", here=[], now=time.time())


def test_a_machine_that_was_renamed_is_told_where_its_state_is(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    folder, _, _ = enter(served.options(None, served.token()))
    renamed = served.options(None, name="flat")
    with pytest.raises(SpecError, match=rf"go on as house with --state {folder}$"):
        enter(renamed)
    (other := folder.with_name("other")).mkdir()
    (other / "job.json").write_text("{")
    assert enter(served.options(None))[0] == folder
    (folder / "job.json").write_text("{")
    with pytest.raises(SpecError, match=rf"{folder}/job.json: cannot be read"):
        enter(renamed)


def test_a_copy_of_a_state_folder_says_that_its_learner_does_not_train(tmp_path: Path) -> None:
    telemetry = tmp_path / "us-0.jsonl"
    planned = Planned(role="learner", name="us-0", command=("a",), env={})
    child = Child(planned, tmp_path / "us-0.log", telemetry, process=Mock())
    processes: Any = Mock(children=[child], steps=0, suspended=False, complete_at=None)
    job = JobNow(state=JobState.TRAINING, tick=5)
    watcher: Any = Mock(refusal=None, now=job, heard_at=0.0)
    said: list[str] = []
    run = JoinedRun(watcher, processes, said.append)
    held = "us-0 has a live session of us-0-1"
    refusal = {"event": "refused", "reason": held}
    for now, line in ((100.0, {"event": "start"}), (200.0, refusal), (300.0, {"t_m": 1})):
        with telemetry.open("a") as file:
            file.write(json.dumps(line) + "\n")
        assert run.advance(now) is None
    assert said == ["tick 5", "tick 5", f"us-0 does not train here: {held}", "tick 5"]


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("192.0.2.1:7700", "192.0.2.1 is no address of this machine .*--advertise"),
        ("nowhere.invalid:7700", "nowhere.invalid is no address of this machine"),
        ("7700", "'7700' is not host:port"),
        ("0.0.0.0:77000", "has a port above 65535"),
        ("http://0.0.0.0:7700", "is a URL"),
    ],
)
def test_where_nobody_can_listen_is_said_at_once(listen: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"--listen: .*{words}"):
        serving_in(tmp_path, parse(JOB), listen=listen, advertise="", here=[], now=0.0)


def test_a_port_of_a_shard_that_another_has_fails_no_job(tmp_path: Path) -> None:
    server = Served(tmp_path / "served").server
    (port,) = server.server.ports
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(SpecError, match=f"port {port}, of a shard, cannot be bound"),
        server.open(lambda _: None),
    ):
        pytest.fail("machines would hear that the job has failed")


def test_what_is_no_name_of_a_host_does_not_answer() -> None:
    with pytest.raises(SpecError, match=r"nothing answers .*label"):
        certificate_at("a..b:7700")


def test_a_second_server_changes_nothing_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    out = tmp_path / "run"
    with run_folder.running(out):
        words = ["serve", str(tmp_path / "job.yaml"), "--out", str(out)]
        ended = CliRunner().invoke(cli.app, [*words, "--listen", "127.0.0.1:7999"])
    assert "is in use by another atoll command" in str(ended.exception)
    assert [each.name for each in out.iterdir()] == [run_folder.LOCK_FILE]


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(SpecError, match="HOME: is not set"):
        state_root()


def test_a_machine_that_is_known_goes_on_whatever_token_a_variable_has(
    served: Served, tmp_path: Path
) -> None:
    known = enter(served.options(tmp_path / "a", served.token()))[:2]
    options = served.options(tmp_path / "a")
    for variable in (OF_ANOTHER, str(served.token())):
        assert enter(replace(options, variable=variable)) == (*known, False)


def test_a_server_that_is_away_is_another_exit_code_than_bad_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (port,) = free_ports(1)
    for token, code in ((OF_ANOTHER, 75), ("half", 2)):
        monkeypatch.setattr("sys.argv", ["atoll", "join", f"127.0.0.1:{port}", "--token", token])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == code
