from pathlib import Path
from typing import Any

import pytest

from atoll_protos.errors import SpecError
from atoll_worker.settings import Job, read_job
from unit.worker.fake_transport import RUN_FILE


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "run.json"
    path.write_text(RUN_FILE.to_json())
    return {
        "ATOLL_RUN_FILE": str(path),
        "ATOLL_ENDPOINTS": "one:1, two:2",
        "ATOLL_SLOT": "here-0",
    }


def read(environment: dict[str, str], **arguments: Any) -> Job:
    return read_job(environment=environment, **arguments)


def test_the_environment_is_enough(environment: dict[str, str]) -> None:
    job = read_job(environment={**environment, "ATOLL_UID": "pod", "ATOLL_TELEMETRY_DIR": "/t"})
    assert job.run_file == RUN_FILE
    assert job.endpoints == ("one:1", "two:2")
    assert (job.slot, job.uid, job.telemetry_folder) == ("here-0", "pod", "/t")
    assert job.instance.startswith("pod-")
    assert read({**environment, "ATOLL_INSTANCE": "mine"}).instance == "mine"


def test_arguments_win_over_the_environment(environment: dict[str, str]) -> None:
    job = read_job(
        environment=environment, run_file=RUN_FILE, endpoints=("a:1", "b:2"), slot="here-1"
    )
    assert job.endpoints == ("a:1", "b:2")
    assert job.slot == "here-1"
    assert read_job(environment={}, run_file=RUN_FILE, endpoints=("a:1", "b:2"), slot="here-1").uid


def test_two_starts_are_two_instances(environment: dict[str, str]) -> None:
    environment["ATOLL_UID"] = "pod"
    assert read(environment).instance != read(environment).instance


@pytest.mark.parametrize("variable", ["ATOLL_RUN_FILE", "ATOLL_ENDPOINTS", "ATOLL_SLOT"])
def test_a_missing_variable_is_named_with_the_remedy(
    environment: dict[str, str], variable: str
) -> None:
    del environment[variable]
    with pytest.raises(SpecError, match=f"{variable}: is not set; .*set it, or pass") as caught:
        read(environment)
    assert caught.value.field == variable


def test_an_observer_needs_no_slot(environment: dict[str, str]) -> None:
    assert read(environment, observer=True).slot == ""
    del environment["ATOLL_SLOT"]
    assert read(environment, observer=True).slot == ""


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ATOLL_RUN_FILE", "/nowhere/run.json", "cannot be read"),
        ("ATOLL_ENDPOINTS", "one:1", "names 1 endpoints for 2 shards"),
        ("ATOLL_SLOT", "Here", "'Here' is no slot"),
        ("ATOLL_SLOT", "there-0", "region there, which the run file does not name"),
    ],
)
def test_a_wrong_variable_is_named(
    environment: dict[str, str], variable: str, value: str, message: str
) -> None:
    environment[variable] = value
    with pytest.raises(SpecError, match=message):
        read(environment)
