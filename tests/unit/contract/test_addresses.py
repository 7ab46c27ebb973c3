"""Endpoints of shards as text."""

from atoll_protos.network.addresses import endpoints_of


def test_endpoints_stand_by_shard() -> None:
    assert endpoints_of(" 10.0.0.1:1, shard-1.team.svc:7700,") == (
        "10.0.0.1:1",
        "shard-1.team.svc:7700",
    )
    assert endpoints_of("") == ()
