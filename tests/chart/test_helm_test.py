"""The script of `helm test`: a job that is Complete passes, every other end fails, none is left."""

import runpy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes import client, config

from chart.rendering import CHART

SCRIPT = CHART / "files/test.py"
ENVIRONMENT = {"NAMESPACE": "team", "JOB": "atoll-test", "REGION": "test", "SECONDS": "280"}


def condition(kind: str, status: str, reason: str = "Some") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": "words"}


STARTS = {"conditions": [condition("Ready", "False", "Starting"), condition("Accepted", "True")]}
COMPLETE = {"conditions": [condition("Ready", "True", "Complete"), condition("Complete", "True")]}
FAILED = {"conditions": [condition("Ready", "False", "Failed"), condition("Failed", "True")]}
REJECTED = {"conditions": [condition("Ready", "False", "Rejected"), condition("Accepted", "False")]}


@dataclass(slots=True)
class Server:
    """The API server, which has one job at most and shows it in these states, one after another."""

    states: list[Mapping[str, Any]]
    left: bool = False  # a job of a former test
    created: list[Mapping[str, Any]] = field(default_factory=list)

    def create_namespaced_custom_object(self, **request: Any) -> None:
        assert not self.left
        assert request["namespace"] == "team"
        self.created.append(request["body"])
        self.left = True

    def get_namespaced_custom_object(self, **request: Any) -> Mapping[str, Any]:
        self._look(request)
        return {"status": self.states.pop(0) if len(self.states) > 1 else self.states[0]}

    def delete_namespaced_custom_object(self, **request: Any) -> None:
        self._look(request)
        self.left = False

    def _look(self, request: Mapping[str, Any]) -> None:
        assert (request["namespace"], request["name"]) == ("team", "atoll-test")
        if not self.left:
            raise client.ApiException(status=404)


def ran(server: Server, monkeypatch: pytest.MonkeyPatch, seconds: str = "280") -> int:
    for name, text in {**ENVIRONMENT, "SECONDS": seconds}.items():
        monkeypatch.setenv(f"TEST_{name}", text)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(config, "load_incluster_config", lambda: None)
    monkeypatch.setattr(client, "CustomObjectsApi", lambda: server)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("states", "code"),
    [([{}, STARTS, COMPLETE], 0), ([{}, STARTS, FAILED], 1), ([{}, REJECTED], 1)],
)
@pytest.mark.parametrize("left", [False, True])
def test_the_end_of_the_job_is_the_end_of_the_test(
    states: list[Mapping[str, Any]], code: int, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(list(states), left=left)
    assert ran(server, monkeypatch) == code
    assert len(server.created) == 1
    assert not server.left


def test_a_job_that_never_ends_fails_the_test_with_its_conditions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, clock = Server([STARTS]), iter(range(0, 10_000, 100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    assert ran(server, monkeypatch) == 1
    assert not server.left
    said = capsys.readouterr().out
    assert "not Complete after 280 s" in said
    assert '"reason": "Starting"' in said
