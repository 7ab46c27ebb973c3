"""The models of a DecoupledTrainingJob's `spec`: the one definition of every field.

Theory of operation: how a manifest becomes a job
-------------------------------------------------
Each field is defined once, by pydantic's `Field`: its type, default, range and description. The
fields of `spec.sync` stand in `sync.py`, those of pods in `pods.py`, all others here.
Everything else that knows about a field derives from this definition:

    crd.py       the OpenAPI schema with which the API server fills defaults and checks ranges
    rules.py     what no single field can show (CEL for the API server, a function for Python)
    presets.py   the defaults that depend on `spec.sync.preset`
    docs.py      docs/spec.md
    runfile.py   the run file, which tells the job's processes what they need to know

A manifest takes one of two ways to become a `Job`, and both end in `manifest.from_object`:

    atoll validate, atoll run    file -> YAML -> `--set` changes ------------------------+
    kubectl apply                API server: defaults, ranges, CEL -> stored object -----+
                                                                                         v
            1. preset       fields of spec.sync that are absent get the preset's value
            2. models       types, ranges, defaults, unknown fields
            3. rules        conditions over several fields, in the order of rules.RULES
                                                                                         v
                                                        Job (frozen), or SpecError

Step 1 comes first because a default that depends on another field cannot stand in a schema. For
the same reason the CRD gives no default for these fields: the API server stores them as absent,
and the preset fills them whenever the object is read.

The two ways must refuse the same manifests in the same words. Ranges agree because the schema is
generated from the models. The rules agree because each one is a single value (`rules.Rule`) that
holds the CEL text, the Python function and the message. A test applies every broken manifest to
both a real API server and the parser and compares the messages. So the API server refuses a wrong
manifest at once, and the operator still checks each object again: an object may have been stored
under an older CRD with weaker rules. Then the job gets the condition Accepted=False.

What an update must not change is known to the API server alone, since only it sees the object
before and after (`rules.FIXED`). Nothing else compares two versions of a manifest, but the run
file's hash does protect a running job: a process refuses to go on with other settings.

Errors are `SpecError(field, problem, remedy)`; `field` is the path that the user wrote, such as
`spec.regions[1].learners`. Values are never corrected silently. A field that is accepted has an
effect; one that this version cannot honour yet is described as such and refused when it is set
(`support.py`).

To add a field: add it here with a description, use it, and regenerate the CRD and docs/spec.md.
"""

from enum import StrEnum
from typing import Final

from pydantic import Field

from atoll_operator.api.model import LEARNERS_MAX, REGIONS_MAX, Model, ShortText
from atoll_operator.api.pods import PodOverrides, Template
from atoll_operator.api.sync import SyncSpec
from atoll_protos import expected
from atoll_protos.expected import START_SECONDS
from atoll_protos.names import REGION_PATTERN, slot_name

API_VERSION: Final = "atoll.dev/v1alpha1"
KIND: Final = "DecoupledTrainingJob"
NAME_CHARACTERS_MAX: Final = 50  # of a job and a region together
SHARDS_MAX: Final = 64
COUNT_MAX: Final = (1 << 53) - 1  # JSON's whole numbers
SECONDS_MAX: Final = 10 * 365 * 24 * 3600


class Learner(Model):
    """What every learner runs."""

    template: Template = Field(
        default=Template(),
        description=(
            "Pod template of every learner. Its first container is the one that trains: give it an"
            " image with Atoll and the script, the command and the resources. What is left out is"
            " filled in; without a command, the built-in byte-level GPT trains. `atoll run` uses"
            " command, args, workingDir and env of that container and ignores the rest."
        ),
    )
    hosts: int = Field(
        default=1,
        ge=1,
        le=64,
        description=(
            "Number of pods that form one learner. More than 1 is not supported yet: a cluster"
            " refuses it, and `atoll run` starts one process per learner."
        ),
    )


class RegionNodes(StrEnum):
    """Which nodes the pods of a region may use."""

    REGION = "Region"
    ANY = "Any"


class RegionSpec(Model):
    """One region and its learners."""

    name: str = Field(
        pattern=f"^{REGION_PATTERN.pattern}$",
        max_length=NAME_CHARACTERS_MAX,
        description=(
            "Name of the region, unique in the job. A learner's slot is this name and its number,"
            " as in us-east-0. It does not begin with syncer or evaluator. The names of the job and"
            f" of a region together have at most {NAME_CHARACTERS_MAX} characters."
        ),
    )
    learners: int = Field(
        default=1,
        ge=0,
        le=LEARNERS_MAX,
        description=(
            "Number of learners in this region, each with a whole copy of the model. It may change"
            " at any time and restarts no other learner."
        ),
    )
    pod_overrides: PodOverrides = Field(
        default=PodOverrides(),
        description="What the learners of this region have instead of the template's settings.",
    )
    nodes: RegionNodes = Field(
        default=RegionNodes.REGION,
        strict=False,
        description=(
            "Where one cluster serves several regions: Region: the region's pods, with the shards"
            " and the evaluator if they run in it, go only to nodes whose region label has the name"
            " of this region, whatever else the template selects. Any: the operator does not ask"
            " for that label. `atoll run` ignores it."
        ),
    )


class StorageType(StrEnum):
    """Where shards keep their state."""

    OBJECT_STORE = "ObjectStore"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    EPHEMERAL = "Ephemeral"


class Reclaim(StrEnum):
    """What becomes of the shards' claims when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageSpec(Model):
    """Where shards keep their log."""

    type: StorageType = Field(
        default=StorageType.EPHEMERAL,
        strict=False,
        description=(
            "PersistentVolumeClaim: every shard has a volume, and a lost shard goes on from it."
            " Ephemeral: a shard's state lives and dies with its pod, and is restored from the"
            " learners. ObjectStore is not supported yet. `atoll run` always keeps the state in"
            " the run folder."
        ),
    )
    url: str = Field(
        default="", max_length=2048, description="Address of an ObjectStore. Not supported yet."
    )
    size: str = Field(
        default="10Gi",
        max_length=32,
        pattern=r"^[0-9]+([kMGTP]|[KMGTP]i)?$",
        description=(
            "Size of each shard's volume, for PersistentVolumeClaim. It may grow where the storage"
            " class allows it."
        ),
    )
    storage_class_name: str = Field(
        default="",
        max_length=253,
        description="Storage class of the volumes; left out, the cluster's default class.",
    )
    reclaim: Reclaim = Field(
        default=Reclaim.RETAIN,
        strict=False,
        description=(
            "Whether the shards' volume claims stay (Retain) or go (Delete) when the job is"
            " deleted."
        ),
    )


class Syncer(Model):
    """The shards."""

    region: str = Field(
        default="",
        max_length=NAME_CHARACTERS_MAX,
        description="Region where the shards and the evaluator run; left out, the first region.",
    )
    shards: int = Field(
        default=1,
        ge=1,
        le=SHARDS_MAX,
        description=(
            "Number of shards. Every fragment's tensors are spread over all shards, so that they"
            " share traffic, memory and work."
        ),
    )
    start_seconds: int = Field(
        default=START_SECONDS,
        ge=0,
        le=expected.SECONDS_MAX,
        description=(
            "Learners begin a run together: those that are ready wait for the others, at most so"
            " many seconds from the first one. Who comes later joins later. 0: nobody waits."
        ),
    )
    storage: StorageSpec = Field(
        default=StorageSpec(),
        description="Where the shards keep their log of committed merges.",
    )
    endpoints: list[ShortText] = Field(
        default=[],
        max_length=SHARDS_MAX,
        description=(
            "host:port of every shard as learners reach it, in the shards' order. Left out, the"
            " shards' Services in this cluster. `atoll run` ignores it."
        ),
    )
    template: Template = Field(
        default=Template(),
        description=(
            "Pod template of the shards; what is left out is filled in. Mount the volume of"
            " spec.export here."
        ),
    )


class Evaluator(Model):
    """An observer that measures held-out loss on the outer parameters."""

    template: Template = Field(
        default=Template(),
        description=(
            "Pod template of the evaluator; what is left out is filled in. Without a command, the"
            " evaluation of the built-in byte-level GPT runs."
        ),
    )
    every_steps: int = Field(
        default=100, ge=1, le=COUNT_MAX, description="Steps between two evaluations."
    )


class Failure(Model):
    """When lost nodes are given up."""

    node_loss_seconds: int = Field(
        default=20,
        ge=1,
        le=86400,
        description=(
            "Seconds without a sign of life after which a node counts as lost and its pods are"
            " replaced elsewhere, if their sessions with the shards are dead too."
        ),
    )
    storm_percent: int = Field(
        default=50,
        ge=1,
        le=100,
        description=(
            "When more than this percentage of a region's nodes (and at least 3) are lost at once,"
            " nothing is replaced and the condition NodeLossHeld is True: a failed network looks"
            " the same."
        ),
    )
    max_replacements_per_slot: int = Field(
        default=20,
        ge=0,
        le=10_000,
        description=(
            "How often a learner may be moved away from a node within a day, which begins with the"
            " first time."
        ),
    )
    syncer_lost_seconds: int | None = Field(
        default=None,
        ge=1,
        le=SECONDS_MAX,
        description=(
            "Not supported yet, leave it out. Seconds after which learners in other clusters stop"
            " when the syncer has disappeared."
        ),
    )


class Checkpoint(Model):
    """Learners' states, kept in addition to the shards' logs."""

    url: str = Field(default="", max_length=2048, description="Where checkpoints are written.")
    every_steps: int = Field(
        default=1000, ge=1, le=COUNT_MAX, description="Steps between two checkpoints."
    )


class Export(Model):
    """Where the final model goes."""

    url: str = Field(
        max_length=2048,
        pattern=r"^[a-z0-9]+://.+$",
        description=(
            "file:///FOLDER, a folder that spec.syncer.template mounts in every shard. Object"
            " stores are not supported yet. `atoll run` always writes to the run folder."
        ),
    )


class FromJob(Model):
    """A job whose state was kept."""

    name: str = Field(
        min_length=1,
        max_length=NAME_CHARACTERS_MAX,
        description="Name of the job, in the same namespace; it may be this job's own.",
    )
    uid: str = Field(
        default="",
        max_length=64,
        description=(
            "UID of the job whose state it is, when jobs of one name have used the same volumes;"
            " left out, the state that was used last."
        ),
    )


class Restore(Model):
    """What another job has left is taken up."""

    from_job: FromJob = Field(
        description=(
            "The job whose run goes on under this one. It must be deleted or Failed, its volume"
            " claims must be there (syncer.storage.reclaim: Retain), and sync, seed and"
            " syncer.shards must have its values."
        )
    )


class Spec(Model):
    """What the job should do, as its user wrote it."""

    suspend: bool = Field(
        default=False,
        description=(
            "True stops the learners and then the shards and keeps the run, which goes on where it"
            " stopped when this is false again. A job that is created with true starts no pod."
        ),
    )
    managed_by: str | None = Field(
        default=None,
        max_length=253,
        description=(
            "Name of the controller that serves this job. Left out or atoll.dev/operator: Atoll."
            " Atoll leaves a job with any other value alone (for Kueue)."
        ),
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=COUNT_MAX,
        description=(
            "Length of the training in steps of the job's clock (ticks), which all learners share."
            " Give exactly one of steps and tokens. It may grow."
        ),
    )
    tokens: int | None = Field(
        default=None,
        ge=1,
        le=COUNT_MAX,
        description=(
            "Length of the training in tokens of all learners together. Give exactly one of steps"
            " and tokens. It may grow."
        ),
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=COUNT_MAX,
        description="Seed of the model's first values and of the order of the data.",
    )
    learner: Learner = Field(
        default=Learner(),
        description="What every learner runs. A learner trains one whole copy of the model.",
    )
    regions: list[RegionSpec] = Field(
        min_length=1,
        max_length=REGIONS_MAX,
        description="The regions in which learners run, at least one.",
    )
    syncer: Syncer = Field(
        default=Syncer(),
        description="The syncer, which merges the learners' work; it needs no accelerator.",
    )
    sync: SyncSpec = Field(
        default=SyncSpec(), description="How and when the learners' work is merged."
    )
    evaluator: Evaluator | None = Field(
        default=None,
        description=(
            "When given, one more process measures the held-out loss of the merged parameters; the"
            " result is in status.progress.metrics."
        ),
    )
    failure: Failure = Field(
        default=Failure(), description="When pods on lost nodes are replaced elsewhere."
    )
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="Checkpoints of the learners' states. Not supported yet, leave it out.",
    )
    export: Export | None = Field(
        default=None,
        description=(
            "Where the final model goes. Left out, it stays on the volume of the only shard, if"
            " that has one; several shards need it."
        ),
    )
    restore: Restore | None = Field(
        default=None,
        description=(
            "Carries on the run of a job that was deleted or has failed, instead of beginning one."
            " For clusters; `atoll run` has --resume."
        ),
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=SECONDS_MAX,
        description=(
            "Seconds after which a job that is Complete or Failed is deleted. Left out, it stays."
            " `atoll run` ignores it."
        ),
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=SECONDS_MAX,
        description=(
            "Seconds since its start or its last resumption after which the job fails. Left out,"
            " there is no limit. `atoll run` ignores it."
        ),
    )

    @property
    def learners(self) -> int:
        """Number of learners of all regions."""
        return sum(region.learners for region in self.regions)

    @property
    def slots(self) -> tuple[str, ...]:
        """Slots of all learners, by region."""
        return tuple(slot_name(r.name, i) for r in self.regions for i in range(r.learners))

    @property
    def quorum(self) -> int:
        """K as a number: learners whose work a merge is to contain."""
        given = self.sync.quorum
        return max(1, self.learners) if given is None else given

    @property
    def learners_needed(self) -> int:
        """Learners without which no merge is made: K, but 1 where learners wait for each other.

        There a merge asks for no more than are in training (docs/protocol.md, rule 10).
        """
        return 1 if self.sync.lockstep else self.quorum


class Restored(Model):
    """Where the state lies that a job has taken up from another one (`kube.plan.restore`)."""

    folder: str  # of each volume: the UID of the job that began the run
    run_name: str  # the name under which the run began, which is part of the run hash
    claims_of: str  # name of the job whose claims the shards mount


class Job(Model):
    """A checked manifest; `uid` is the object's, empty on this machine."""

    name: str
    spec: Spec
    uid: str = ""
    restored: Restored | None = None

    @property
    def run_name(self) -> str:
        """The name of the job in its run file."""
        return self.restored.run_name if self.restored else self.name

    @property
    def claims_of(self) -> str:
        """The name of the job whose volume claims the shards mount."""
        return self.restored.claims_of if self.restored else self.name

    @property
    def folder(self) -> str:
        """The folder of each volume in which the state lies."""
        return self.restored.folder if self.restored else self.uid
