"""Which machine of how many of its learner one is, as a person says it."""

from atoll_operator.api.job.learner_fields import HOSTS_MAX
from atoll_protos.errors import SpecError


def host_of(hosts: int, host: int | None, learners: int) -> int:
    """Raises SpecError; `learners` are those of this machine."""
    if hosts > HOSTS_MAX:
        raise SpecError("--hosts", f"is {hosts}", f"use at most {HOSTS_MAX}")
    if host is None and hosts > 1:
        problem = f"is not given, and learners have {hosts} hosts"
        raise SpecError("--host", problem, f"give 0 on one machine, to {hosts - 1} on the last")
    found = host or 0
    if found >= hosts:
        remedy = f"use 0 to {hosts - 1}" if hosts > 1 else "leave it out, or give --hosts"
        raise SpecError("--host", f"is {found}, and its learner has {hosts}", remedy)
    if learners > 1 and hosts > 1:
        problem = f"is {learners}, and each learner has {hosts} hosts"
        raise SpecError("--learners", problem, "leave it out: a host is of one learner")
    return found
