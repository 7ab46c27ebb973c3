"""Fixtures of the Kubernetes executor's tests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.kube.plan import applied
from atoll_operator.kube.plan.situation import Situation
from unit.kube.person_side import Cluster, kubeconfig


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time stands still: what is written differs only by what is seen."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster of the kubeconfig, whose namespace is team."""
    found = Cluster()
    with kubeconfig(tmp_path / "config", found):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.chdir(tmp_path)
        yield found


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept, without the time that it takes."""
    found: list[float] = []
    whole = asyncio.sleep

    async def sleep(seconds: float) -> None:
        found.append(round(seconds, 3))
        await whole(min(seconds, 0.02))

    monkeypatch.setattr("asyncio.sleep", sleep)
    return found


@pytest.fixture(autouse=True)
def what_is_kept_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every test: what is given again is what would be made now, so no input is left out."""
    kept = applied.compared

    def checked(case: Situation, own: Any) -> list[applied.Compared]:
        found = kept(case, own)
        with monkeypatch.context() as during:
            during.setattr(applied, "_KEPT", {})
            assert found == kept(case, own)
        return found

    monkeypatch.setattr(applied, "compared", checked)
