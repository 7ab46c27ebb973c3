"""What a quiet training job costs the API server, by the API server's own record."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.installed import NAMESPACE, RELEASE, REPLICAS
from cluster.lab.layout import run_folder
from cluster.training import Job, pass_seconds

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"
QUIET_SECONDS = 120.0
SETTLE_SECONDS = 30.0  # after which the start's Events and conditions are written
WRITES_A_MINUTE_MAX = 7
SECRETS = 4  # of the authority, the shard and two regions, each read every 5 minutes
LOOKS_A_MINUTE_MAX = 40  # at the Lease, of one replica: every two seconds or a little earlier
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def requests(log: Path, offset: int) -> Counter[str]:
    """The operator's requests since then, by verb and resource; watches that begin count too."""
    with log.open("rb") as lines:
        lines.seek(offset)
        records = [json.loads(line) for line in lines]
    own = [each for each in records if each["user"]["username"] == OPERATOR]
    return Counter(
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in own
        if each["stage"] == "ResponseComplete" and "objectRef" in each
    )


@pytest.mark.long
def test_a_quiet_training_job_costs_no_list_and_at_most_seven_writes_a_minute(
    train: Callable[..., Job], lab: object
) -> None:
    del lab
    job = train("quiet", {"us-east": 1, "eu-west": 1})
    pass_seconds(SETTLE_SECONDS)
    log = run_folder() / "c1/log/audit.log"
    offset, step = log.stat().st_size, job.get()["status"]["progress"]["step"]
    pass_seconds(QUIET_SECONDS)
    found = requests(log, offset)
    looks = sum(found.pop(f"{verb} leases", 0) for verb in ("get", "patch"))
    assert 0 < looks <= LOOKS_A_MINUTE_MAX * REPLICAS * QUIET_SECONDS / 60, looks
    assert found.pop("get secrets", 0) <= SECRETS, found
    assert not [each for each in found if each.startswith("list ")], found
    assert not [each for each in found if each.startswith("get ")], found
    writes = sum(count for each, count in found.items() if each.split()[0] in WRITES)
    assert 0 < writes <= WRITES_A_MINUTE_MAX * QUIET_SECONDS / 60, found
    assert job.get()["status"]["progress"]["step"] > step
