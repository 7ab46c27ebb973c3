"""A DecoupledTrainingJob: its `spec` as a whole, and how a manifest becomes a job.

A manifest takes one of two ways to become a `Job`, and both end in `parsing.from_object`:

    atoll validate, atoll run    file -> YAML -> `--set` changes ------------------------+
    kubectl apply                API server: defaults, ranges, CEL -> stored object -----+
                                                                                         v
            1. preset       fields of spec.sync that are absent get the preset's value
            2. models       types, ranges, defaults, unknown fields
            3. rules        conditions over several fields, in the order of RULES
                                                                                         v
                                                        Job (frozen), or SpecError

Step 1 comes first because a default that depends on another field cannot stand in a schema: the API
server stores these fields as absent, and the preset fills them whenever the object is read.

The two ways refuse the same manifests in the same words. The operator checks each object again,
since it may have been stored under an older CRD with weaker rules; then the job gets the condition
Accepted=False. Values are never corrected silently, and a field that is accepted has an effect, or
is refused when it is set (`parsing.py`).

To add a field: add it to its model with a description, use it, and regenerate the CRD and
docs/spec.md.
"""

from typing import Final

from pydantic import Field

from atoll_operator.api.job.fields import (
    COUNT_MAX,
    REGIONS_MAX,
    SECONDS_MAX,
    CheckpointSpec,
    Evaluator,
    ExportSpec,
    FailureSpec,
    LearnerSpec,
    Model,
    RegionSpec,
    Sizing,
    Syncer,
)
from atoll_operator.api.job.sync_fields import SyncSpec

API_VERSION: Final = "atoll.dev/v1alpha1"
KIND: Final = "DecoupledTrainingJob"


class Spec(Model):
    """What the job should do, as its user wrote it."""

    suspend: bool = False
    """True stops the learners and then the shards and keeps the run, which continues where it
    stopped when this is false again. A job that is created with true starts no pod."""
    managed_by: str | None = Field(default=None, max_length=253)
    """Name of the controller that serves this job. Left out or atoll.dev/operator: Atoll. Atoll
    leaves a job with any other value alone (for Kueue)."""
    steps: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """Length of the training in steps of the job's clock (ticks), which all learners share. Give
    exactly one of steps and tokens. It may change while the job runs, which ends at once where it
    is beyond the new length."""
    tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """Length of the training in tokens of all learners together. Give exactly one of steps and
    tokens. It may change while the job runs, which ends at once where it is beyond the new
    length."""
    seed: int = Field(default=0, ge=0, le=COUNT_MAX)
    """Seed of the model's first values and of the order of the data."""
    learner: LearnerSpec = LearnerSpec()
    """What every learner runs. A learner trains one whole copy of the model."""
    regions: list[RegionSpec] = Field(min_length=1, max_length=REGIONS_MAX)
    """The regions in which learners run, 1 to 64. Others than the syncer's may come and go while
    the job runs."""
    syncer: Syncer = Syncer()
    """The syncer, which merges the learners' work; it needs no accelerator."""
    sync: SyncSpec = SyncSpec()
    """How and when the learners' work is merged."""
    evaluator: Evaluator | None = None
    """When given, one more process measures the held-out loss of the merged parameters; the result
    is in status.progress.metrics."""
    sizing: Sizing | None = None
    """What `atoll plan` reckons with. Where regions have a link, Accepted and `atoll run` warn of
    links and overlaps that will not hold. It changes nothing in the training."""
    failure: FailureSpec = FailureSpec()
    """When pods on lost nodes are replaced elsewhere."""
    export: ExportSpec | None = None
    """Where the final model goes. Left out, it stays on the volume of the only shard, if that has
    one, or in the bucket of ObjectStore storage; several shards need it otherwise."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Where and how often checkpoints of the training are taken."""
    """Carries on the run of a job that was deleted or has failed, instead of beginning one. For
    clusters; `atoll run` has --resume."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=SECONDS_MAX)
    """Seconds after which a job that is Complete or Failed is deleted. Left out, it stays. `atoll
    run` ignores it."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=SECONDS_MAX)
    """Seconds since its start or its last resumption after which the job fails. Left out, there is
    no limit. `atoll run` ignores it."""

    @property
    def syncer_region(self) -> str:
        return self.syncer.region or self.regions[0].name

    @property
    def export_url(self) -> str:
        return self.export.url if self.export else ""

    @property
    def learners(self) -> int:
        return sum(region.learners for region in self.regions)

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot for region in self.regions for slot in region.slots)

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


class Job(Model):
    """A checked manifest; `uid` is the object's, empty on this machine."""

    name: str
    spec: Spec
    uid: str = ""
