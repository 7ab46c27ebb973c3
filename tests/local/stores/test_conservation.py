"""As failures/test_conservation.py, with the state of the shards in a bucket."""

from pathlib import Path

import pytest

from local.command import TWO_LEARNERS
from local.failures.test_conservation import SPARE, conserved, kills
from local.stores.servers import Server


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("standby", [(), ("--standby",)], ids=["one", "standby"])
def test_kills_of_a_run_in_a_bucket_lose_nothing_that_is_not_counted(
    standby: tuple[str, ...], moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (*TWO_LEARNERS, *standby, *moto.place().used(monkeypatch))
    conserved(tmp_path, kills(SPARE * 10, 8.0), 10, *more)
