"""`--metrics-port` of a real shard: what a scrape shows of a seed, a commit and a bad peer."""

import asyncio
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from wire.fixtures import SECONDS_MAX, first_commit, peer, shard, until


def scrape(port: int) -> dict[str, float]:
    """Every sample by its name without the prefix, and its label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS_MAX) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        label = "".join(f" {value}" for value in sample.labels.values())
        found[sample.name.removeprefix("atoll_syncer_") + label] = sample.value
    return found


@pytest.mark.fresh
def test_a_scrape_shows_what_a_shard_has_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            peer(served.endpoint, "here-0") as learner,
            peer(served.endpoint, "here-1") as bad,
        ):
            await first_commit(served, learner)
            assert (await bad.join()).HasField("welcome")
            await bad.send(bad.frames(0))  # a seed that nobody asked for
            await bad.until("end")
            slots = {"slots Lost": 1, "slots Training": 1}
            await until(lambda: slots.items() <= scrape(port).items())
            check(scrape(port))

    def check(seen: dict[str, float]) -> None:
        said = served.status
        gauges = {"epoch": 1, "tick": said.tick, "sessions": 1}
        counters = {
            "commits_total": 1,
            "offers_total merged": 1,
            "offers_total rejected": 1,
            "refusals_total BAD_TRANSFER": 1,
            "quorum_seconds_count": 1,
            "commit_seconds_count": 1,
            "merge_seconds_count": 3,  # two seeds and a commit
            "store_seconds_count": 3,
        }
        wanted = {**gauges, **counters}
        assert {name: seen.get(name) for name in wanted} == wanted
        moved = {
            link.region: (
                seen[f"received_bytes_total {link.region}"],
                seen[f"sent_bytes_total {link.region}"],
            )
            for link in said.links
        }
        assert moved == {each.region: (each.received, each.sent) for each in said.links}
        assert min(said.tick, said.bytes_received, said.bytes_sent) > 0

    with shard(tmp_path) as served:
        port = served.metrics_port
        before = scrape(port)
        assert before["commits_total"] == before["sessions"] == 0
        assert before["received_bytes_total here"] == before["sent_bytes_total "] == 0
        asyncio.run(scenario())
