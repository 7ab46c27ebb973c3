"""How the hosts of a learner meet, and whether another one of them is lost.

Hosts meet in rounds by the dynamic rendezvous of torchrun (c10d). Its state is in a store that the
agent of host 0 serves, and each agent writes there every few seconds that it lives. A round begins
when all hosts are there, or as many as the learner needs at least and `last_call_timeout` is over.
Where a host ends, starts again or is replaced, the others stop their processes and meet again. How
long things take is in `torchrun.MEETING`. docs/learners.md ("Several hosts") has what differs from
torchrun, and these are the reasons:

- Hosts sort by ATOLL_HOST and not by address, since rank 0, the head, has to be a process of host
  0, whose pod is the one by which the learner is known.
- Where fewer hosts are enough, the agents meet again when a host has said nothing for
  `seconds_to_notice` twice: torchrun's would wait in a collective, perhaps for ever.
- Who comes before host 0 waits for it in place, since a container that ends again and again is
  started again only every five minutes in the end.
"""

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

import structlog
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous import registry as rendezvous
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    _RendezvousExitOp,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.torchrun import MEETING_PORT

AGAIN_SECONDS: Final = 1.0  # from one try to reach host 0 to the next
CONNECT_SECONDS_MAX: Final = 5.0
LEAVE_SECONDS_MAX: Final = 5.0
JOIN_SECONDS: Final = 600  # torchrun's, where nothing is given

log = structlog.get_logger()


@dataclass(frozen=True, order=True, slots=True)
class Host:
    """A host as the others see it; they sort by its number. The fields of torch follow."""

    number: int
    addr: str
    pid: int
    local_id: int


class Meeting(DynamicRendezvousHandler):
    """The rendezvous of the hosts of one learner."""

    _met: frozenset[Host] = frozenset()  # those of the present round
    _gone_since: float | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """As torch has it; a round without host 0, where fewer hosts are enough, is none."""
        while True:
            found = super().next_rendezvous()
            hosts: Any = self._state_holder.state.participants
            if min(host.number for host in hosts) == 0:
                self._met, self._gone_since = frozenset(hosts), None
                return found
            pause()

    def num_nodes_waiting(self) -> int:
        """How many hosts wait for another round, before which the agent stops its processes.

        Those that are gone count, too, as soon as the others should go on without them.
        """
        waiting: int = super().num_nodes_waiting()
        state: Any = self._state_holder.state
        here: Any = self._this_node
        gone = not_needed(self._met, {here, *state.last_heartbeats}, self.settings.min_nodes)
        if not gone or state.closed:
            self._gone_since = None
            return waiting
        if self._gone_since is None:
            self._gone_since = now()
        if waiting or now() - self._gone_since < self.seconds_to_notice:
            return waiting
        names = ", ".join(str(host.number) for host in sorted(gone))
        log.warning(
            f"nothing comes from host {names} of this learner: the others continue without it"
        )
        return len(gone)

    @property
    def present(self) -> int:
        """How many hosts there are of those that have met, as they themselves say."""
        self.num_nodes_waiting()  # asks the store
        return len(self._state_holder.state.participants)

    def leave(self) -> None:
        self._stop_heartbeats()
        with self._heartbeat_lock:
            self._op_executor.run(_RendezvousExitOp(), time.monotonic() + LEAVE_SECONDS_MAX)

    @property
    def seconds_to_notice(self) -> float:
        """After which a host that says nothing counts as gone."""
        interval: float = self.settings.keep_alive_interval.total_seconds()
        return interval * self.settings.keep_alive_max_attempt


def not_needed(met: Set[Host], heard: Set[Host], hosts_min: int) -> Set[Host]:
    gone = met - heard
    return gone if len(met) - len(gone) >= hosts_min else frozenset()


def open_meeting(config: LaunchConfig, environment: Mapping[str, str]) -> RendezvousHandler:
    """How this host meets the others; waits until host 0 can be reached.

    Raises SpecError if ATOLL_HOST is the number of no host, and RendezvousError if host 0 does not
    come within `join_timeout`, or cannot serve its store.
    """
    number = number_of(environment, config.max_nodes)
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    if number is None:
        return rendezvous.get_rendezvous_handler(parameters)
    parameters.config["is_host"] = str(number == 0)
    handler = _reached(parameters, number)
    assert isinstance(handler, DynamicRendezvousHandler), "c10d is a dynamic rendezvous"
    first = parse_rendezvous_endpoint(config.rdzv_endpoint, MEETING_PORT)[0]
    address = config.local_addr or (first if number == 0 else handler._this_node.addr)
    here: Any = Host(number, address, os.getpid(), 0)
    return Meeting(
        here, handler.settings, handler.get_backend(), handler._store, handler._state_holder
    )


def now() -> float:
    return time.monotonic()


def pause() -> None:
    time.sleep(AGAIN_SECONDS)


def leave(handler: RendezvousHandler | None) -> None:
    """Tell the others that this host is gone, who would wait for its next sign of life."""
    if isinstance(handler, Meeting):
        with contextlib.suppress(RendezvousError, DistError):
            handler.leave()


def number_of(environment: Mapping[str, str], hosts: int) -> int | None:
    """Which host of its learner this is; None of the only one, or where nobody says; SpecError."""
    given = environment.get(Env.HOST, "")
    if not given or hosts == 1:
        return None
    if not given.isdecimal() or int(given) >= hosts:
        problem = f"is {given}, and PET_NNODES says that there are {hosts} hosts"
        raise SpecError(Env.HOST, problem, f"give a number from 0 to {hosts - 1}")
    return int(given)


def _reached(parameters: RendezvousParameters, number: int) -> RendezvousHandler:
    """A rendezvous that is connected to the store of host 0.

    torch would wait, too, but for no longer than `read_timeout`, and with pages of errors.
    """
    seconds = parameters.get_as_int("join_timeout", JOIN_SECONDS) or JOIN_SECONDS
    deadline = time.monotonic() + seconds
    told = False
    while True:
        try:
            if number:
                address = parse_rendezvous_endpoint(parameters.endpoint, MEETING_PORT)
                socket.create_connection(address, CONNECT_SECONDS_MAX).close()
            return rendezvous.get_rendezvous_handler(parameters)
        except (OSError, RendezvousConnectionError) as error:
            if number == 0 or time.monotonic() > deadline:
                raise RendezvousConnectionError(f"{parameters.endpoint}: {error}") from error
        if not told:
            told = True
            log.warning(f"waiting for host 0 of this learner at {parameters.endpoint}", host=number)
        pause()
