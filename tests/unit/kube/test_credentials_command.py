"""`atoll credentials`: what a person is given for a region, or for one machine of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.authority import job_authority
from atoll_operator.kube.names import (
    Annotation,
    JobOwner,
    authority_name,
    credentials_name,
    generations,
    machines,
)
from atoll_operator.kube.plan import children
from atoll_operator.machines.bundle import Bundle, read
from atoll_protos.job.run_file import Expected, ListedMachine
from atoll_protos.network.credentials import Credentials, Role
from unit.certificate_values import DAY, NOW, OWNER, authorities, identity
from unit.kube.cluster_values import MANIFEST, job
from unit.kube.person_side import COLLECTIONS, Cluster
from unit.kube.test_brought import ISSUERS, judged


@pytest.fixture
def stored(cluster: Cluster) -> dict[str, Any]:
    """The job in the cluster of its syncer, where the Secret of its authority is too."""
    raw = yaml.safe_load(MANIFEST)
    raw["metadata"] |= {"name": "bytes", "uid": OWNER.uid, "resourceVersion": "1"}
    raw["spec"]["syncer"] = {"shards": 1, "tls": {"mode": "Required"}}
    cluster.put("Secret", authority_name("bytes"), {"data": ISSUERS.to_files()})
    return cluster.put("Job", "bytes", raw)


def bundle_in(folder: Path) -> Bundle:
    found = read(folder)
    assert found is not None
    return found


def typed(*more: str) -> Any:
    words = ["credentials", "bytes", "--context", "here", *more]
    return CliRunner().invoke(cli.app, words)


@pytest.mark.usefixtures("stored")
def test_the_command_prints_a_secret_that_is_taken_where_it_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atoll_operator.cli.credentials.time.time", lambda: NOW)
    done = typed("--region", "eu-west", "--days", "3")
    assert done.exit_code == 0, done.output
    printed = yaml.safe_load(done.output)
    assert printed["metadata"]["name"] == credentials_name("bytes", "eu-west")
    found = judged(printed)
    assert found.fault == ""
    assert judged(printed, NOW + 3.1 * DAY).fault
    assert found.operator is not None
    assert isinstance(found.operator, Credentials)
    assert found.operator.authority == ISSUERS.bundle
    assert job_authority.due_at(found.operator.certificate) == pytest.approx(NOW + 2 * DAY, abs=2)


def test_credentials_of_a_job_in_plain_text_are_refused(stored: dict[str, Any]) -> None:
    stored["spec"]["syncer"]["tls"] = {"mode": "Disabled"}
    done = typed("--region", "eu-west")
    assert "need no credentials" in str(done.exception)
    assert not done.output


def test_credentials_are_signed_with_the_authority_that_the_manifest_names(
    cluster: Cluster, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_operator.cli.credentials.time.time", lambda: NOW)
    corporate = authorities()
    cluster.put("Secret", "corp-ca", {"data": corporate.to_files()})
    stored["spec"]["syncer"]["tls"]["caSecret"] = "corp-ca"
    found = judged(yaml.safe_load(typed("--region", "eu-west").output))
    assert found.operator is not None
    assert found.operator.authority == corporate.bundle


def test_a_region_a_job_or_an_authority_that_is_not_there_is_named(
    cluster: Cluster, stored: dict[str, Any]
) -> None:
    assert "give one of eu-west" in str(typed("--region", "eu").exception)
    home = str(typed("--region", "us-east").exception)
    assert "us-east is where the syncer runs" in home
    assert home.endswith("give one of eu-west")
    del cluster.objects[f"{COLLECTIONS['Secret']}/bytes-ca"]
    absent = "bytes: bytes-ca not found in the namespace team"
    assert str(typed("--region", "eu-west").exception).startswith(absent)
    cluster.refused["/secrets/bytes-ca"] = (403, "secrets is forbidden: you cannot get")
    said = str(typed("--region", "eu-west").exception)
    assert said.startswith("bytes: the cluster refuses: secrets is forbidden: you cannot get; ask")
    stored["spec"]["regions"] = [{"name": "us-east", "learners": 2}]
    assert "no region in another cluster" in str(typed("--region", "us-east").exception)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("days", ["0", "-1", "60.5", "10000", "nan", "inf"])
def test_days_that_are_not_possible_are_refused_with_those_that_are(days: str) -> None:
    done = typed("--region", "eu-west", "--days", days)
    assert "--days" in str(done.exception)
    assert "give 0.001 (86 seconds) to 60" in str(done.exception)
    assert not done.output


@pytest.mark.usefixtures("stored")
def test_what_is_printed_after_a_revocation_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll_operator.cli.credentials.time.time", lambda: NOW)
    for count in (1, 2):
        done = typed("--revoke", "eu-west")
        assert done.exit_code == 0, done.output
        assert "atoll credentials bytes -n team --region eu-west prints valid ones" in done.stderr
        printed = yaml.safe_load(typed("--region", "eu-west").output)
        operator = judged(printed).operator
        assert operator is not None
        assert operator.identity.generation == count
    assert typed("--revoke", "us-east").exit_code == 0  # the operator renews that one
    printed = yaml.safe_load(typed("--region", "eu-west").output)
    operator = judged(printed).operator
    assert operator is not None
    assert operator.identity.generation == 2


@pytest.mark.usefixtures("stored")
def test_a_revocation_needs_a_region_of_the_job() -> None:
    said = str(typed("--revoke", "eu").exception)
    assert "give one of us-east, eu-west; regions that a job has not any more are shut out" in said
    assert "exactly one is needed" in str(typed().exception)
    assert "exactly one is needed" in str(typed("--region", "a", "--revoke", "b").exception)


# ---------------------------------------------------------------- for a machine


def test_files_for_a_machine_are_those_of_learners_and_what_they_need(
    cluster: Cluster, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("atoll_operator.cli.credentials.time.time", lambda: NOW)
    words = ("--region", "eu-west", "--files", str(tmp_path / "house"))
    refused = str(typed(*words).exception)
    assert refused.startswith("spec.syncer.endpoints: is empty, and the job shows no addresses")
    shown = {"shards": 1, "ready": 1, "epochs": [1], "endpoints": ["10.0.0.1:30700"]}
    stored["status"] = {"syncer": shown}
    done = typed(*words)
    assert done.exit_code == 0, done.output
    assert not done.stdout
    folder = tmp_path / "house"
    assert f"atoll join --credentials {folder} -- SCRIPT" in done.stderr
    names = {each.name for each in folder.iterdir()}
    assert names == {
        "job.json",
        "run.json",
        "tls.crt",
        "tls.key",
        "ca.crt",
    }  # none of the region's operator
    assert all(each.stat().st_mode & 0o077 == 0 for each in (folder, *folder.iterdir()))
    first = Credentials.read(folder)
    assert first.check(NOW) == identity(Role.LEARNER, "eu-west")
    found = bundle_in(folder)
    assert (found.job, found.region, found.learners) == ("bytes", "eu-west", 1)
    assert found.endpoints == ("10.0.0.1:30700",)
    whole = from_object(stored, stored=True)
    assert (folder / "run.json").read_text() == run_file(whole).to_json()
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]  # which learners elsewhere dial
    assert typed(*words).exit_code == 0
    assert bundle_in(folder).endpoints == ("gate:7700",)
    assert Credentials.read(folder) != first


def test_machines_hear_how_many_of_them_are_one_learner_and_are_shut_out_together(
    stored: dict[str, Any], tmp_path: Path
) -> None:
    stored["spec"] |= {"learner": {"hosts": 3, "hostsMin": 2}}
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]
    words = ("--region", "eu-west", "--files", str(tmp_path / "house"))
    assert typed(*words).exit_code == 0
    found = bundle_in(tmp_path / "house")
    assert (found.hosts, found.hosts_min) == (3, 2)
    refused = str(typed(*words, "--machine", "one").exception)
    assert refused.startswith("--machine: is for learners of one machine each")


def test_a_folder_that_cannot_be_written_is_named(stored: dict[str, Any], tmp_path: Path) -> None:
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]
    (tmp_path / "file").write_text("")
    refused = str(typed("--region", "eu-west", "--files", str(tmp_path / "file/x")).exception)
    assert refused == f"{tmp_path}/file/x: Not a directory; give a writable folder"


def test_each_machine_of_a_region_may_have_certificates_and_slots_of_its_own(
    stored: dict[str, Any], tmp_path: Path
) -> None:
    stored["spec"]["syncer"]["endpoints"] = ["gate:7700"]
    stored["spec"]["regions"][1]["learners"] = 3

    def made(name: str, *more: str) -> tuple[str, tuple[str, ...]]:
        """The machine that its certificate names, and its slots."""
        words = ("--region", "eu-west", "--machine", name, "--files", str(tmp_path / name), *more)
        done = typed(*words)
        assert done.exit_code == 0, done.exception
        found = Credentials.read(tmp_path / name).identity
        assert (found.role, found.region) == (Role.LEARNER, "eu-west")
        return found.machine, bundle_in(tmp_path / name).slots

    assert made("one", "--learners", "2") == ("one", ("eu-west-0", "eu-west-1"))
    assert made("two") == ("two", ("eu-west-2",))
    version = stored["metadata"]["annotations"][Annotation.MACHINES]
    assert made("one") == ("one", ("eu-west-0", "eu-west-1"))  # renewed, and the job is as it was
    assert stored["metadata"]["annotations"][Annotation.MACHINES] == version
    three = ("--region", "eu-west", "--machine", "three", "--files", str(tmp_path / "three"))
    refused = str(typed(*three).exception)
    assert "1 wanted, and machines have all but 0 of region eu-west" in refused
    assert refused.endswith("kubectl edit dtj bytes: 4 learners of region eu-west")
    done = typed("--revoke", "eu-west", "--machine", "one")
    assert done.stderr.startswith("machine one is shut out when the kubelet has shown them that")
    listed = children.slots_map(JobOwner.of(stored, "bytes"), job(), 1)["data"]["slots.json"]
    two = ListedMachine(name="two", slots=("eu-west-2",))
    assert Expected.from_json(listed).machines == (two,)
    again = ("--region", "eu-west", "--machine", "one", "--files", str(tmp_path / "one"))
    assert "one was shut out; give another name" in str(typed(*again).exception)
    assert made("three") == ("three", ("eu-west-0",))
    assert not (generations(stored["metadata"]["annotations"]))  # the region's stay


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--region", "eu-west", "--machine", "m"], "--machine: is for a machine without"),
        (
            ["--region", "eu-west", "--files", "x", "--learners", "2"],
            "is for --machine",
        ),
        (["--region", "eu-west", "--files", "x", "--machine", "a/b"], "'a/b' is no name"),
        (["--revoke", "eu-west", "--machine", "m"], "--machine: m is none of region eu-west"),
        (["--revoke", "us-east", "--machine", "m"], "--machine: m is none of region us-east"),
    ],
)
def test_a_machine_that_cannot_be_named_is_refused(words: list[str], said: str) -> None:
    assert said in str(typed(*words).exception)


@pytest.mark.parametrize(
    "spoilt", ["", "{", "[]", '{"one": "eu-west-0"}', '{"one": [1]}', '{"one": null}', 7]
)
def test_a_spoilt_annotation_of_machines_counts_as_none(spoilt: object) -> None:
    assert machines({Annotation.MACHINES: spoilt}) == {}
