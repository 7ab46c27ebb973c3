"""The table of environment variables: what differs from one process of a job to the next.

All else comes from the run file. Both executors build a process's variables with the functions
below, so that none is set by one of them only. To add one of a learner: its name, row and place in
`of_learner`; the module that knows its value; `read_job` of the worker.

The hosts of one learner meet by variables of torchrun. `atoll-worker launch` has a rendezvous of
its own; where the command is torchrun, hosts meet by c10d: the static rendezvous cannot bring them
together a second time. Its store is not that of torch.distributed: with that a host that joins
later waits for an address that never comes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from atoll_protos.errors import SpecError


class VariableReader(StrEnum):
    """Who reads a variable."""

    LEARNER = "learner"
    EVALUATOR = "evaluator"
    SHARD = "shard"
    OPERATOR = "operator"
    COMMAND = "command"


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
    STORE_ENDPOINT: Final = "ATOLL_STORE_ENDPOINT"
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
    OPERATOR_CHILDREN_PER_JOB: Final = "ATOLL_OPERATOR_CHILDREN_PER_JOB"
    OPERATOR_CHILDREN_PER_NAMESPACE: Final = "ATOLL_OPERATOR_CHILDREN_PER_NAMESPACE"
    OPERATOR_CHILDREN: Final = "ATOLL_OPERATOR_CHILDREN"
    OPERATOR_LEASE: Final = "ATOLL_OPERATOR_LEASE"
    OPERATOR_POD_USER: Final = "ATOLL_OPERATOR_POD_USER"
    OPERATOR_CERTIFICATE_SECONDS: Final = "ATOLL_OPERATOR_CERTIFICATE_SECONDS"
    TOKEN: Final = "ATOLL_TOKEN"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. `default` is what an absent one means; None: it has to be set."""

    roles: tuple[VariableReader, ...]
    set_by: str
    name: str
    default: str | None
    meaning: str


OPERATOR: Final = "the operator"
LOCAL: Final = "`atoll run`"
EXECUTORS: Final = f"{OPERATOR} and {LOCAL}"
CHART: Final = "the chart"
LEARNERS: Final = (VariableReader.LEARNER,)
TRAINING: Final = (VariableReader.LEARNER, VariableReader.EVALUATOR)
OF_A_JOB: Final = (*TRAINING, VariableReader.SHARD)
WITH_PROBES: Final = (VariableReader.SHARD, VariableReader.LEARNER)

_everywhere = partial(Variable, OF_A_JOB, EXECUTORS)
_of_a_start = partial(Variable, OF_A_JOB, LOCAL)
_with_tls = partial(Variable, OF_A_JOB, f"{OPERATOR} and `atoll serve`")
_learner = partial(Variable, LEARNERS, EXECUTORS)
_in_a_pod = partial(Variable, LEARNERS, OPERATOR)
_by_hand = partial(Variable, LEARNERS, "the user")
_shown = partial(Variable, TRAINING, LOCAL)
_shard = partial(Variable, (VariableReader.SHARD,), OPERATOR)
_probed = partial(Variable, WITH_PROBES, OPERATOR)
_operator = partial(Variable, (VariableReader.OPERATOR,), CHART)
_operators_user = partial(Variable, (VariableReader.OPERATOR,), "the user")
_command = partial(Variable, (VariableReader.COMMAND,), "the user")

VARIABLES: Final[tuple[Variable, ...]] = (
    _everywhere(Env.RUN_FILE, None, "path of the job's run file"),
    _everywhere(
        Env.ENDPOINTS,
        None,
        "host:port of every shard, or unix:PATH, comma-separated, by number",
    ),
    _everywhere(Env.UID, "", "UID of the pod; a random name when it is absent"),
    _of_a_start(Env.INSTANCE, "", "name of this start; where absent, the UID and random digits"),
    _in_a_pod(
        Env.ORDINAL, "", "number of the learner in its region; on Kubernetes it gives the slot"
    ),
    _learner(Env.SLOT, None, "the learner's slot, such as us-east-0"),
    _learner(Env.HOST, "0", "number of this host of the learner; rank 0 is on host 0"),
    _learner(Env.HOSTS, "1", "number of hosts of the learner"),
    _learner(Env.REGION, "", "the learner's region, for the user's script"),
    _shown(Env.TELEMETRY_DIR, "", "folder of learners/SLOT.jsonl; empty: it is not written"),
    _with_tls(Env.TLS_DIR, "", "folder of tls.crt, tls.key and ca.crt; empty: plain text"),
    _by_hand(Env.STEPS, "100", "length in steps of a learner that is alone; in a job it is unused"),
    _by_hand(Env.LANES, "1", "connections to each shard; slices are divided over all"),
    _by_hand(
        Env.RANKS_SILENCE_SECONDS,
        "120",
        "seconds of silence after which a rank is lost, and all start again",
    ),
    _shard(Env.SHARD, "0", "number of the shard; default of --shard"),
    _shard(
        Env.LISTEN,
        "127.0.0.1:0",
        "where it listens, host:port or unix:PATH; 0.0.0.0: all addresses, also of IPv6; default"
        " of --listen",
    ),
    _shard(Env.STORE, None, "folder of the shard's durable state, or its URL; default of --store"),
    _shard(
        Env.STORE_ENDPOINT,
        "",
        "URL of the server that has the buckets of store and export; empty: the provider's own; "
        "default of --store-endpoint",
    ),
    _shard(Env.SLOTS_FILE, "", "list of the job's learners, if known; default of --slots-file"),
    _shard(Env.LENGTH_FILE, "", "file with the job's present length; default of --length-file"),
    _shard(Env.TAPE, None, "file to which the shard writes its events; default of --tape"),
    _shard(Env.EXPORT, None, "folder of the final model, or its URL; default of --export"),
    _shard(Env.METRICS_PORT, "0", "port of its metrics, 0 for none; default of --metrics-port"),
    _probed(
        Env.HEALTH_PORT,
        "0",
        "port where probes are answered in plain text, 0 for none: a shard's health service "
        "(default of --health-port); over HTTP `atoll-worker launch`, while it is not stopped",
    ),
    _operator(Env.WORKER_IMAGE, None, "image of learners and evaluators whose template names none"),
    _operator(Env.SYNCER_IMAGE, None, "image of shards whose template names none"),
    _operator(Env.OPERATOR_REGIONS, "*", "regions whose pods it makes, comma-separated; * for all"),
    _operator(
        Env.OPERATOR_REGION_LABEL,
        "topology.kubernetes.io/region",
        "label of nodes that names their region, where one cluster spans regions",
    ),
    _operator(
        Env.OPERATOR_PULL_POLICY, "IfNotPresent", "imagePullPolicy where a template has none"
    ),
    _operator(
        Env.OPERATOR_NAMESPACES, "", "namespaces that it watches, comma-separated; empty for all"
    ),
    _operator(
        Env.OPERATOR_API_REQUESTS, "50", "requests to the API server in a second, without watches"
    ),
    _operator(Env.OPERATOR_API_BURST, "100", "requests beyond that, after a quiet time"),
    _operator(Env.OPERATOR_CHILDREN_PER_JOB, "1500", "pods that a job may ask for"),
    _operator(
        Env.OPERATOR_CHILDREN_PER_NAMESPACE,
        "3000",
        "pods that the jobs of a namespace may ask for",
    ),
    _operator(Env.OPERATOR_CHILDREN, "10000", "pods that all jobs may ask for"),
    _operator(Env.OPERATOR_LEASE, "default/atoll-operator", "NAMESPACE/NAME of the leader's Lease"),
    _operator(
        Env.OPERATOR_POD_USER,
        "65532",
        "user and group of jobs' pods whose template names none; empty: the cluster gives them one",
    ),
    _operators_user(Env.OPERATOR_HTTP_PORT, "8080", "port of the operator's probes and metrics"),
    _operators_user(
        Env.OPERATOR_CERTIFICATE_SECONDS,
        "2592000",
        "life of the certificates of jobs; each is renewed at two thirds of it",
    ),
    _command(Env.TOKEN, "", "token for `atoll join HOST:PORT`, where none is given"),
)
BY_NAME: Final[Mapping[str, Variable]] = {variable.name: variable for variable in VARIABLES}


def default(name: str) -> str:
    return BY_NAME[name].default or ""


def value(environment: Mapping[str, str], name: str) -> str:
    """Return the variable's value, else its default. Raises SpecError where both are absent."""
    variable = BY_NAME[name]
    if name in environment and (environment[name] or variable.default is not None):
        return environment[name]
    if variable.default is None:
        raise SpecError(name, "is not set", f"set it to the {variable.meaning}")
    return variable.default


def of_process(*, run_file: str, endpoints: str) -> dict[str, str]:
    """Return what every process of a job gets, and an evaluator no more."""
    return {Env.RUN_FILE: run_file, Env.ENDPOINTS: endpoints}


def of_learner(*, region: str, slot: str) -> dict[str, str]:
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
    """Return the defaults of its flags, besides `of_process`."""
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
    """Return what every host of several gets besides `of_process` and `of_learner`.

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
