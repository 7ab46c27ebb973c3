"""A pod that crashed with credentials that were replaced since does not wait for its back-off."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.edges.api import NODES, path
from atoll_operator.kube.names import POD_INDEX_LABEL
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import (
    Certificates,
    Observation,
    Pod,
    Remembered,
    SecretSeen,
)
from atoll_operator.kube.plan import restarts
from atoll_protos.exits import ExitCode
from atoll_protos.names import Label
from unit.kube.cluster_values import learner
from unit.kube.planner_side import NOW, planned, seen
from unit.kube.test_secrets import LEARNER, begun

SECRET = SecretSeen(name="tiny-tls-learner-us-east", uid="u", version="7", written_at=NOW - 5)
IN_BACK_OFF = learner(
    "us-east-0", "n1", waiting="CrashLoopBackOff", exit_code=int(ExitCode.TRY_AGAIN), began_at=NOW
)  # its kubelet may have shown it the former Secret for a while


def with_secret(pod: Pod, secret: SecretSeen = SECRET, **remembered: Any) -> Observation:
    return seen(
        pods=(pod,),
        certificates=Certificates(secrets={secret.name: secret}),
        remembered=Remembered(replies=(None,), **remembered),
    )


def test_it_is_made_again_once_for_each_secret() -> None:
    (found,) = planned(with_secret(IN_BACK_OFF)).delete
    assert (found.name, found.reason) == ("tiny-us-east-0", restarts.RENEWED)
    assert found.key is not None
    done = {found.key: 3600.0}
    assert not planned(with_secret(IN_BACK_OFF, deleted_seconds=done)).delete
    newer = replace(SECRET, version="8")
    assert planned(with_secret(IN_BACK_OFF, newer, deleted_seconds=done)).delete


@pytest.mark.parametrize(
    ("pod", "secret"),
    [
        ({"exit_code": 1}, {}),  # its own crash
        ({"waiting": "", "runs": True}, {}),
        ({"terminating": True}, {}),
        ({"began_at": None}, {}),
        ({}, {"written_at": NOW - 600}),  # it has tried these
        ({}, {"reason": "tls.crt expired"}),
        ({}, {"name": "tiny-tls-shard"}),
    ],
)
def test_it_waits_where_other_credentials_cannot_help(
    pod: dict[str, Any], secret: dict[str, Any]
) -> None:
    found = with_secret(replace(IN_BACK_OFF, **pod), replace(SECRET, **secret))
    assert not planned(found).delete


@pytest.mark.usefixtures("still")
def test_what_the_kubelet_and_the_api_server_show_is_compared() -> None:
    world = begun()
    world.server.add_pod(
        "tiny-us-east-0", "learner", "n1", **{Label.REGION: "us-east", POD_INDEX_LABEL: "0"}
    )
    ended = {"exitCode": int(ExitCode.TRY_AGAIN), "startedAt": rfc3339(NOW - 900)}
    world.server.children[path("Pod", "demo", "tiny-us-east-0")]["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "learner",
                "restartCount": 5,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": ended},
            }
        ],
    }
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    world.nodes.take(NODES, "ADDED", {"metadata": {"name": "n1"}, "status": ready})
    metadata = world.server.children[LEARNER]["metadata"]
    for written, deletes in ((NOW - 1200, False), (NOW, True)):
        metadata["managedFields"] = [{"time": rfc3339(NOW - 5000)}, {"time": rfc3339(written)}]
        metadata["resourceVersion"] = rfc3339(written)
        world.memory.certificates.next_at = 0.0  # the time of the next reading
        assert ("delete tiny-us-east-0" in world.run()) is deletes
