"""Which ranks of a learner own its values on their way to and from the wire, without torch.

The first rank of each host does, so that every host carries its share over its own network. Owner h
of H has part h of H of every slice (rule 32). With L connections of each host to a shard, lanes h L
.. (h + 1) L of H L, that is just what belongs on these: edge(h L) of H L parts is edge(h) of H.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from atoll_protos.environment import Env
from atoll_protos.transfer.division import LANES_MAX, Share

HEAD: Final = 0  # the rank that speaks with the job
GROUP_RANK: Final = "GROUP_RANK"  # torchrun's number of a host


def host_of(environment: Mapping[str, str]) -> int:
    """The number of this process's host in its learner: as its pod says it, else torchrun."""
    for name in (Env.HOST, GROUP_RANK):
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def owners_of(hosts: Sequence[int], lanes: int) -> tuple[int, ...]:
    """The owners in the order of their parts, from the host of each rank: the head, then by host.

    A session has LANES_MAX connections, each host `lanes` of them: further hosts have none.
    """
    first: dict[int, int] = {}
    for rank, host in enumerate(hosts):
        first.setdefault(host, rank)
    others = sorted(host for host in first if host != hosts[HEAD])
    return (HEAD, *(first[host] for host in others))[: LANES_MAX // lanes]


def share_of(rank: int, owners: Sequence[int], lanes: int) -> Share | None:
    """What a rank holds of each slice, and carries on the lanes of its host; None if nothing."""
    if rank not in owners:
        return None
    place = owners.index(rank)
    return Share(place * lanes, (place + 1) * lanes, len(owners) * lanes)
