import time
from pathlib import Path
from typing import Any

import pytest

from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.network.credentials import Credentials, Role
from atoll_worker.errors import LearnerError
from atoll_worker.job import Job, read_job
from unit.certificate_values import DAY, authorities, identity, leaf
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
    assert (job.lanes, read({**environment, "ATOLL_LANES": "256"}).lanes) == (1, 256)
    assert read({**environment, "ATOLL_INSTANCE": "mine"}).instance == "mine"
    assert read(environment).instance != read(environment).instance  # of two starts


@pytest.mark.parametrize("variable", ["ATOLL_RUN_FILE", "ATOLL_ENDPOINTS", "ATOLL_SLOT"])
def test_a_missing_variable_is_named_with_the_remedy(
    environment: dict[str, str], variable: str
) -> None:
    del environment[variable]
    with pytest.raises(SpecError, match=f"{variable}: is not set; .*set it, or unset") as caught:
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
        *(("ATOLL_LANES", lanes, "from 1 to 256") for lanes in ("0", "257", "-1", "9" * 5000)),
    ],
)
def test_a_wrong_variable_is_named(
    environment: dict[str, str], variable: str, value: str, message: str
) -> None:
    environment[variable] = value
    with pytest.raises(SpecError, match=message):
        read(environment)


# ------------------------------------------------------------ credentials


def with_credentials(environment: dict[str, str], credentials: Credentials) -> dict[str, str]:
    """The environment with these credentials beside the run file."""
    folder = Path(environment[Env.RUN_FILE]).parent / "tls"
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(credentials.certificate)
    (folder / "tls.key").write_bytes(credentials.key)
    (folder / "ca.crt").write_bytes(credentials.authority)
    return {**environment, Env.TLS_DIR: str(folder)}


def test_a_learner_with_good_credentials_knows_where_they_lie(
    environment: dict[str, str], tmp_path: Path
) -> None:
    now = time.time()
    variables = with_credentials(
        environment, leaf(authorities(now), identity(region="here"), now=now)
    )
    assert read_job(environment=variables).tls_folder == str(tmp_path / "tls")
    del variables[Env.TLS_DIR]
    assert read_job(environment=variables).tls_folder == ""


def test_credentials_that_stay_wrong_are_bad_input_before_anything_is_dialled(
    environment: dict[str, str], tmp_path: Path
) -> None:
    now = time.time()
    for who, words in (
        (identity(region="eu-west"), "is that of region eu-west, and region here is needed"),
        (identity(Role.OPERATOR, "here"), "is that of role operator, and learner is needed"),
    ):
        variables = with_credentials(environment, leaf(authorities(now), who, now=now))
        with pytest.raises(SpecError, match=words):
            read_job(environment=variables)
    (tmp_path / "tls" / "tls.key").unlink()
    with pytest.raises(SpecError, match=f"^{tmp_path}/tls/tls.key: is missing; put there"):
        read_job(environment=variables)


def test_credentials_that_are_not_in_date_are_tried_again_at_the_next_start(
    environment: dict[str, str],
) -> None:
    now = time.time()
    variables = with_credentials(
        environment, leaf(authorities(now), identity(region="here"), now=now - 31 * DAY)
    )
    with pytest.raises(LearnerError, match=r"tls.crt: expired at 20.* UTC") as ended:
        read_job(environment=variables)
    assert ended.value.exit_code == ExitCode.TRY_AGAIN


def test_an_observer_needs_credentials_of_an_evaluator_or_observer(
    environment: dict[str, str], tmp_path: Path
) -> None:
    now = time.time()
    for role in Role:
        variables = with_credentials(environment, leaf(authorities(now), identity(role), now=now))
        if role in (Role.EVALUATOR, Role.OBSERVER):
            assert read_job(observer=True, environment=variables).tls_folder
        else:
            with pytest.raises(SpecError, match="evaluator or observer is needed"):
                read_job(observer=True, environment=variables)
