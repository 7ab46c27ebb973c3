"""The table of environment variables: every name has one row, and what is set is in the table."""

import re
from pathlib import Path

import pytest

from atoll_protos import environment
from atoll_protos.environment import BY_NAME, VARIABLES, Env, Torchrun, VariableReader
from atoll_protos.errors import SpecError

ROOT = Path(__file__).parents[3]
NAMES = {name for key, name in vars(Env).items() if key.isupper()}
OF_PROCESS = environment.of_process(run_file="/run.json", endpoints="a:1")
SHARD = environment.of_shard(
    shard=1,
    listen="h:1",
    slots_file="/slots.json",
    length_file="/length.json",
    store="/s",
    tape="/t",
    export="/e",
    metrics_port=9,
)


def test_every_name_has_one_row_and_the_chart_sets_those_that_it_should() -> None:
    assert BY_NAME.keys() == NAMES
    assert len(VARIABLES) == len(NAMES)
    text = (ROOT / "helm/atoll/templates/deployment.yaml").read_text()
    set_by_chart = {row.name for row in VARIABLES if row.set_by == environment.CHART}
    assert set(re.findall(r"name: (ATOLL_\w+)", text)) == set_by_chart
    assert all(BY_NAME[name].roles == (VariableReader.OPERATOR,) for name in set_by_chart)


@pytest.mark.parametrize(
    ("role", "given"),
    [
        (VariableReader.LEARNER, environment.of_learner(region="us", slot="us-0")),
        (VariableReader.SHARD, SHARD),
    ],
)
def test_a_process_is_given_all_that_it_must_have(
    role: VariableReader, given: dict[str, str]
) -> None:
    needed = {row.name for row in VARIABLES if role in row.roles and row.default is None}
    assert needed <= {*OF_PROCESS, *given}
    assert (SHARD[Env.SHARD], SHARD[Env.METRICS_PORT]) == ("1", "9")


def test_an_absent_variable_means_its_default_and_an_empty_one_counts_where_there_is_one() -> None:
    assert environment.value({}, Env.LISTEN) == environment.default(Env.LISTEN) == "127.0.0.1:0"
    assert environment.value({Env.LISTEN: "h:1"}, Env.LISTEN) == "h:1"
    assert environment.value({Env.TELEMETRY_DIR: ""}, Env.TELEMETRY_DIR) == ""


@pytest.mark.parametrize("given", [{}, {Env.RUN_FILE: ""}])
def test_a_missing_variable_is_named_with_its_meaning(given: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=r"^ATOLL_RUN_FILE: is not set; set it to the path of"):
        environment.value(given, Env.RUN_FILE)


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
