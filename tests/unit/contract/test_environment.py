"""The table of environment variables: every name has one row, and what is set is in the table."""

import re
from pathlib import Path

import pytest

from atoll_protos import environment
from atoll_protos.environment import BY_NAME, VARIABLES, Env, Role
from atoll_protos.errors import SpecError

ROOT = Path(__file__).parents[3]
NAMES = {name for key, name in vars(Env).items() if key.isupper()}


def test_every_name_has_one_row() -> None:
    assert {variable.name for variable in VARIABLES} == NAMES
    assert len(VARIABLES) == len(NAMES)


def test_what_the_chart_sets_for_the_operator_is_in_the_table() -> None:
    text = (ROOT / "helm/atoll/templates/deployment.yaml").read_text()
    set_by_chart = {row.name for row in VARIABLES if row.set_by == environment.CHART}
    assert set(re.findall(r"name: (ATOLL_\w+)", text)) == set_by_chart
    assert all(BY_NAME[name].roles == (Role.OPERATOR,) for name in set_by_chart)


@pytest.mark.parametrize("role", Role)
def test_each_role_reads_some_variables(role: Role) -> None:
    assert [variable for variable in VARIABLES if role in variable.roles]


def test_a_learner_is_given_all_that_it_must_have() -> None:
    given = {
        **environment.of_process(run_file="/run.json", endpoints="a:1"),
        **environment.of_learner(region="us", slot="us-0"),
    }
    needed = {v.name for v in VARIABLES if Role.LEARNER in v.roles and v.default is None}
    assert needed <= given.keys()


def test_a_shard_is_given_all_that_it_must_have() -> None:
    given = {
        **environment.of_process(run_file="/run.json", endpoints="a:1"),
        **environment.of_shard(
            shard=1,
            listen="h:1",
            slots_file="/slots.json",
            length_file="/length.json",
            store="/s",
            tape="/t",
            export="/e",
            metrics_port=9,
        ),
    }
    needed = {v.name for v in VARIABLES if Role.SHARD in v.roles and v.default is None}
    assert needed <= given.keys()
    assert (given[Env.SHARD], given[Env.METRICS_PORT]) == ("1", "9")


def test_an_absent_variable_means_its_default() -> None:
    assert environment.value({}, Env.LISTEN) == environment.default(Env.LISTEN) == "127.0.0.1:0"
    assert environment.value({Env.LISTEN: "h:1"}, Env.LISTEN) == "h:1"


def test_an_empty_value_counts_where_there_is_a_default() -> None:
    assert environment.value({Env.TELEMETRY_DIR: ""}, Env.TELEMETRY_DIR) == ""


@pytest.mark.parametrize("given", [{}, {Env.RUN_FILE: ""}])
def test_a_missing_variable_is_named_with_its_meaning(given: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=r"^ATOLL_RUN_FILE: is not set; set it to the path of"):
        environment.value(given, Env.RUN_FILE)
