"""The table of environment variables: what differs from one process of a job to the next.

Configuration flows from the manifest to the run file, which is equal for all processes of a job.
An environment variable carries only what is a process's own: where the run file lies, which slot
or shard it is, where the syncer listens. `VARIABLES` lists them with their meaning, their default
and the one who sets them, for learners, evaluators, shards and the operator.

Both executors, the local planner and the planner of pods, build a process's variables with the
functions below (`of_process`, `of_learner`, `of_shard`) and with `torchrun.of_hosts`, so that a
variable cannot be set by one of them only.

To add a variable of a learner: its name, row and place in `of_learner` here; the module that
knows its value; the module that reads it (`read_job` of the worker).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from atoll_protos.errors import SpecError


class Role(StrEnum):
    """Who reads a variable."""

    LEARNER = "learner"
    EVALUATOR = "evaluator"
    SHARD = "shard"
    OPERATOR = "operator"


class Env:
    """The names. `VARIABLES` has the rest."""

    RUN_FILE: Final = "ATOLL_RUN_FILE"
    ENDPOINTS: Final = "ATOLL_ENDPOINTS"
    UID: Final = "ATOLL_UID"
    INSTANCE: Final = "ATOLL_INSTANCE"
    ORDINAL: Final = "ATOLL_ORDINAL"
    SLOT: Final = "ATOLL_SLOT"
    HOST: Final = "ATOLL_HOST"
    HOSTS: Final = "ATOLL_HOSTS"
    REGION: Final = "ATOLL_REGION"
    TELEMETRY_DIR: Final = "ATOLL_TELEMETRY_DIR"
    TLS_DIR: Final = "ATOLL_TLS_DIR"
    STEPS: Final = "ATOLL_STEPS"
    LANES: Final = "ATOLL_LANES"
    RANKS_SILENCE_SECONDS: Final = "ATOLL_RANKS_SILENCE_SECONDS"
    SHARD: Final = "ATOLL_SHARD"
    LISTEN: Final = "ATOLL_LISTEN"
    STORE: Final = "ATOLL_STORE"
    SLOTS_FILE: Final = "ATOLL_SLOTS_FILE"
    LENGTH_FILE: Final = "ATOLL_LENGTH_FILE"
    TAPE: Final = "ATOLL_TAPE"
    EXPORT: Final = "ATOLL_EXPORT"
    METRICS_PORT: Final = "ATOLL_METRICS_PORT"
    HEALTH_PORT: Final = "ATOLL_HEALTH_PORT"
    WORKER_IMAGE: Final = "ATOLL_WORKER_IMAGE"
    SYNCER_IMAGE: Final = "ATOLL_SYNCER_IMAGE"
    OPERATOR_REGIONS: Final = "ATOLL_OPERATOR_REGIONS"
    OPERATOR_REGION_LABEL: Final = "ATOLL_OPERATOR_REGION_LABEL"
    OPERATOR_PULL_POLICY: Final = "ATOLL_OPERATOR_PULL_POLICY"
    OPERATOR_HTTP_PORT: Final = "ATOLL_OPERATOR_HTTP_PORT"
    OPERATOR_NAMESPACES: Final = "ATOLL_OPERATOR_NAMESPACES"
    OPERATOR_API_REQUESTS: Final = "ATOLL_OPERATOR_API_REQUESTS_PER_SECOND"
    OPERATOR_API_BURST: Final = "ATOLL_OPERATOR_API_BURST"
    OPERATOR_LEASE: Final = "ATOLL_OPERATOR_LEASE"
    OPERATOR_POD_USER: Final = "ATOLL_OPERATOR_POD_USER"
    OPERATOR_CERTIFICATE_SECONDS: Final = "ATOLL_OPERATOR_CERTIFICATE_SECONDS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable. `default` is what an absent one means; None: it has to be set.

    `set_by` names who sets it, in words.
    """

    name: str
    meaning: str
    roles: tuple[Role, ...]
    set_by: str
    default: str | None = None


OPERATOR: Final = "the operator"
LOCAL: Final = "`atoll run`"
EXECUTORS: Final = f"{OPERATOR} and {LOCAL}"
CHART: Final = "the chart"
OF_A_JOB: Final = (Role.LEARNER, Role.EVALUATOR, Role.SHARD)
TRAINING: Final = (Role.LEARNER, Role.EVALUATOR)

VARIABLES: Final[tuple[Variable, ...]] = (
    Variable(
        name=Env.RUN_FILE,
        meaning="path of the job's run file",
        roles=OF_A_JOB,
        set_by=EXECUTORS,
    ),
    Variable(
        name=Env.ENDPOINTS,
        meaning="host:port of every shard, comma-separated, in the order of the shards",
        roles=OF_A_JOB,
        set_by=EXECUTORS,
    ),
    Variable(
        name=Env.UID,
        meaning="UID of the pod; a random name when it is absent",
        roles=OF_A_JOB,
        set_by=EXECUTORS,
        default="",
    ),
    Variable(
        name=Env.INSTANCE,
        meaning="name of this start of the process; the UID and random digits when it is absent",
        roles=OF_A_JOB,
        set_by=LOCAL,
        default="",
    ),
    Variable(
        name=Env.ORDINAL,
        meaning="number of the learner in its region; Kubernetes makes the slot from it",
        roles=(Role.LEARNER,),
        set_by=OPERATOR,
        default="",
    ),
    Variable(
        name=Env.SLOT,
        meaning="the learner's slot, such as us-east-0",
        roles=(Role.LEARNER,),
        set_by=EXECUTORS,
    ),
    Variable(
        name=Env.HOST,
        meaning="number of this host in a learner of several hosts; its head is on host 0",
        roles=(Role.LEARNER,),
        set_by=EXECUTORS,
        default="0",
    ),
    Variable(
        name=Env.HOSTS,
        meaning="number of hosts of the learner",
        roles=(Role.LEARNER,),
        set_by=EXECUTORS,
        default="1",
    ),
    Variable(
        name=Env.REGION,
        meaning="the learner's region, for the user's script",
        roles=(Role.LEARNER,),
        set_by=EXECUTORS,
        default="",
    ),
    Variable(
        name=Env.TELEMETRY_DIR,
        meaning="folder in which learners/SLOT.jsonl is written; empty: it is not written",
        roles=TRAINING,
        set_by=LOCAL,
        default="",
    ),
    Variable(
        name=Env.TLS_DIR,
        meaning="folder with tls.crt, tls.key and ca.crt of this process; empty: plain text",
        roles=OF_A_JOB,
        set_by=OPERATOR,
        default="",
    ),
    Variable(
        name=Env.STEPS,
        meaning="length in steps of a learner that is alone; under a job it changes nothing",
        roles=(Role.LEARNER,),
        set_by="the user",
        default="100",
    ),
    Variable(
        name=Env.LANES,
        meaning="connections of each host of a learner to each shard; slices are divided over all",
        roles=(Role.LEARNER,),
        set_by="the user",
        default="1",
    ),
    Variable(
        name=Env.RANKS_SILENCE_SECONDS,
        meaning="a rank of a learner that says nothing for so long is lost: all ranks start again",
        roles=(Role.LEARNER,),
        set_by="the user",
        default="120",
    ),
    Variable(
        name=Env.SHARD,
        meaning="number of the shard; default of --shard",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
        default="0",
    ),
    Variable(
        name=Env.LISTEN,
        meaning="host:port on which the shard listens, 0.0.0.0 for all addresses, also of IPv6;"
        " default of --listen",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
        default="127.0.0.1:0",
    ),
    Variable(
        name=Env.STORE,
        meaning="folder of the shard's durable state; default of --store",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
    ),
    Variable(
        name=Env.SLOTS_FILE,
        meaning="path of the list of the job's learners; default of --slots-file, empty: unknown",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
        default="",
    ),
    Variable(
        name=Env.LENGTH_FILE,
        meaning="path of the file with the job's present length; default of --length-file,"
        " empty: it stays that of the run file",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
        default="",
    ),
    Variable(
        name=Env.TAPE,
        meaning="file to which the shard writes its events; default of --tape",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
    ),
    Variable(
        name=Env.EXPORT,
        meaning="folder of the final model; default of --export",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
    ),
    Variable(
        name=Env.METRICS_PORT,
        meaning="port of the shard's metrics, 0 for none; default of --metrics-port",
        roles=(Role.SHARD,),
        set_by=OPERATOR,
        default="0",
    ),
    Variable(
        name=Env.HEALTH_PORT,
        meaning="port where probes are answered in plain text, 0 for none: a shard's health service"
        " (default of --health-port); over HTTP `atoll-worker launch`, while it is not stopped",
        roles=(Role.SHARD, Role.LEARNER),
        set_by=OPERATOR,
        default="0",
    ),
    Variable(
        name=Env.WORKER_IMAGE,
        meaning="image of learners and evaluators whose template names none",
        roles=(Role.OPERATOR,),
        set_by=CHART,
    ),
    Variable(
        name=Env.SYNCER_IMAGE,
        meaning="image of shards whose template names none",
        roles=(Role.OPERATOR,),
        set_by=CHART,
    ),
    Variable(
        name=Env.OPERATOR_REGIONS,
        meaning="regions whose pods this operator makes, comma-separated; * for all",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="*",
    ),
    Variable(
        name=Env.OPERATOR_REGION_LABEL,
        meaning="label of nodes that names their region, where one cluster spans regions",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="topology.kubernetes.io/region",
    ),
    Variable(
        name=Env.OPERATOR_PULL_POLICY,
        meaning="imagePullPolicy of pods whose template names none",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="IfNotPresent",
    ),
    Variable(
        name=Env.OPERATOR_HTTP_PORT,
        meaning="port of the operator's probes and metrics",
        roles=(Role.OPERATOR,),
        set_by="the user",
        default="8080",
    ),
    Variable(
        name=Env.OPERATOR_NAMESPACES,
        meaning="namespaces that this operator watches, comma-separated; empty for all",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="",
    ),
    Variable(
        name=Env.OPERATOR_API_REQUESTS,
        meaning="requests to the API server that this operator sends in a second, but for watches",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="50",
    ),
    Variable(
        name=Env.OPERATOR_API_BURST,
        meaning="requests to the API server beyond that, after a quiet time",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="100",
    ),
    Variable(
        name=Env.OPERATOR_LEASE,
        meaning="NAMESPACE/NAME of the Lease that says which replica leads",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="default/atoll-operator",
    ),
    Variable(
        name=Env.OPERATOR_POD_USER,
        meaning="user and group of jobs' pods whose template names none; empty: the cluster gives"
        " them one",
        roles=(Role.OPERATOR,),
        set_by=CHART,
        default="65532",
    ),
    Variable(
        name=Env.OPERATOR_CERTIFICATE_SECONDS,
        meaning="life of the certificates of jobs; each is renewed at two thirds of it",
        roles=(Role.OPERATOR,),
        set_by="the user",
        default="2592000",
    ),
)
BY_NAME: Final[Mapping[str, Variable]] = {variable.name: variable for variable in VARIABLES}


def default(name: str) -> str:
    """What the variable means when it is absent; empty where it has to be set."""
    return BY_NAME[name].default or ""


def value(environment: Mapping[str, str], name: str) -> str:
    """The variable's value, else its default.

    Raises SpecError, which names the variable, where it is absent or empty and has no default.
    """
    variable = BY_NAME[name]
    if name in environment and (environment[name] or variable.default is not None):
        return environment[name]
    if variable.default is None:
        raise SpecError(name, "is not set", f"set it to the {variable.meaning}")
    return variable.default


def of_process(*, run_file: str, endpoints: str) -> dict[str, str]:
    """The variables that every process of a job gets, an evaluator no others."""
    return {Env.RUN_FILE: run_file, Env.ENDPOINTS: endpoints}


def of_learner(*, region: str, slot: str) -> dict[str, str]:
    """What a learner gets besides `of_process`."""
    return {Env.REGION: region, Env.SLOT: slot}


def of_shard(
    *,
    shard: int,
    listen: str,
    slots_file: str,
    length_file: str,
    store: str,
    tape: str,
    export: str,
    metrics_port: int,
) -> dict[str, str]:
    """What a shard gets besides `of_process`: the defaults of its flags."""
    return {
        Env.SHARD: str(shard),
        Env.LISTEN: listen,
        Env.SLOTS_FILE: slots_file,
        Env.LENGTH_FILE: length_file,
        Env.STORE: store,
        Env.TAPE: tape,
        Env.EXPORT: export,
        Env.METRICS_PORT: str(metrics_port),
    }


def of_tls(folder: str, *, health_port: int = 0) -> dict[str, str]:
    """What a process gets besides that talks over TLS; a shard has a port for plain probes."""
    return {Env.TLS_DIR: folder} | ({Env.HEALTH_PORT: str(health_port)} if health_port else {})
