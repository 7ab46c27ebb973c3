"""A DecoupledTrainingJob: its `spec` as a whole, and how a manifest becomes a job.

Theory of operation: how a manifest becomes a job
-------------------------------------------------
Each field is defined once, by pydantic's `Field`: its type, default, range and description. The
fields of `spec.sync` stand in `sync.py`, those of learners and regions in `learners.py`, those of
the syncer in `syncer.py`, those of pods in `pods.py`, those of the smaller parts of `spec` in
`parts.py`, and its own here. Everything else that knows about a field derives from this definition:

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

To add a field: add it to its model with a description, use it, and regenerate the CRD and
docs/spec.md.
"""

from typing import Final

from pydantic import Field

from atoll_operator.api.learners import Learner, RegionSpec
from atoll_operator.api.model import COUNT_MAX, REGIONS_MAX, SECONDS_MAX, Model
from atoll_operator.api.parts import Evaluator, Export, Failure, Restore
from atoll_operator.api.sync import SyncSpec
from atoll_operator.api.syncer import Syncer
from atoll_protos.names import slot_name

API_VERSION: Final = "atoll.dev/v1alpha1"
KIND: Final = "DecoupledTrainingJob"


class Spec(Model):
    """What the job should do, as its user wrote it."""

    suspend: bool = Field(
        default=False,
        description=(
            "True stops the learners and then the shards and keeps the run, which continues where"
            " it stopped when this is false again. A job that is created with true starts no pod."
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
            " Give exactly one of steps and tokens. It may change while the job runs, which ends"
            " at once where it is beyond the new length."
        ),
    )
    tokens: int | None = Field(
        default=None,
        ge=1,
        le=COUNT_MAX,
        description=(
            "Length of the training in tokens of all learners together. Give exactly one of steps"
            " and tokens. It may change while the job runs, which ends at once where it is beyond"
            " the new length."
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
    def syncer_region(self) -> str:
        """The region where the shards live: as given, else the first region."""
        return self.syncer.region or self.regions[0].name

    @property
    def export_url(self) -> str:
        """Where the final model goes; empty: it stays on the volume of the only shard."""
        return self.export.url if self.export else ""

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
