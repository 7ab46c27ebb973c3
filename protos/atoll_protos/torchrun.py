"""The variables of torchrun with which the hosts of one learner meet, in pods and in local mode.

They meet by c10d: the static rendezvous cannot bring hosts together a second time. Its store is not
that of torch.distributed: with that a host that joins later waits for an address that never comes.
"""

from typing import Final

from atoll_protos.environment import Env


class Torchrun:
    """What torchrun reads; torch describes them."""

    NODES: Final = "PET_NNODES"
    PROCESSES: Final = "PET_NPROC_PER_NODE"
    BACKEND: Final = "PET_RDZV_BACKEND"
    ENDPOINT: Final = "PET_RDZV_ENDPOINT"
    ID: Final = "PET_RDZV_ID"
    CONF: Final = "PET_RDZV_CONF"
    RESTARTS: Final = "PET_MAX_RESTARTS"
    OWN_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


MEETING_PORT: Final = 29400  # of a learner's first host, where its hosts meet; torchrun's default

MEETING: Final = ",".join(  # in seconds
    (
        "join_timeout=86400",  # waiting in place is free; a container that ends again and again
        # is started again only every five minutes when the last host has found its node
        "last_call_timeout=10",  # beyond the least number of hosts: a container starts in less
        "keep_alive_interval=3",  # a host that says nothing three times is gone: sooner than a new
        "keep_alive_max_attempt=3",  # one comes; its clock may differ by as much from the others'
        "read_timeout=30",  # of host 0's store: all who wait there end when its node has lost power
    )
)

RESTARTS_MAX: Final = 1000  # of processes in place: the supervisor's patience ends long before


def of_hosts(
    *, slot: str, hosts: int, hosts_min: int, processes: int, first_host: str, host: int | None
) -> dict[str, str]:
    """What every host of a learner of several hosts gets besides `of_process` and `of_learner`.

    `first_host` is host:port of host 0, known before any is ready; `processes` are of each host;
    `hosts_min` are enough to train. `host`: None where Kubernetes sets it, from the pod's label.
    """
    nodes = f"{hosts_min}:{hosts}" if hosts_min < hosts else str(hosts)
    own = {} if host is None else {Env.HOST: str(host)}
    return {
        **own,
        Env.HOSTS: str(hosts),
        Torchrun.NODES: nodes,
        Torchrun.PROCESSES: str(processes),
        Torchrun.BACKEND: "c10d",
        Torchrun.ENDPOINT: first_host,
        Torchrun.ID: slot,
        Torchrun.RESTARTS: str(RESTARTS_MAX),
        Torchrun.CONF: MEETING,
        Torchrun.OWN_STORE: "1",
    }
