"""The hosts of one learner meet by the variables of torchrun."""

from atoll_protos import environment
from atoll_protos.environment import Env, Torchrun


def test_the_hosts_of_a_learner_meet_at_the_first_one() -> None:
    given = environment.of_hosts(
        slot="us-0", hosts=4, hosts_min=4, processes=8, first_host="a-us-0-0.a-us-0:29400", host=2
    )
    assert (given[Env.HOST], given[Env.HOSTS]) == ("2", "4")
    assert (given[Torchrun.NODES], given[Torchrun.PROCESSES]) == ("4", "8")
    assert (given[Torchrun.BACKEND], given[Torchrun.ID]) == ("c10d", "us-0")
    assert given[Torchrun.ENDPOINT] == "a-us-0-0.a-us-0:29400"
    assert given[Torchrun.OWN_STORE] == "1"


def test_a_learner_that_may_have_fewer_hosts_says_so_to_torchrun() -> None:
    given = environment.of_hosts(
        slot="us-0", hosts=4, hosts_min=2, processes=1, first_host="h:1", host=None
    )
    assert given[Torchrun.NODES] == "2:4"
    assert Env.HOST not in given  # Kubernetes sets it from the pod's label
