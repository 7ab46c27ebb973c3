"""The settings of one run: plain values, whose hash names the file of its result."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.process_inputs import run_file
from atoll_protos.job.run_file import RunFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Options of a ByteGPT (bytegpt.model.Size, without torch), and its rate."""

    layers: int
    heads: int
    width: int
    rate: float  # peak of AdamW, best of several for data-parallel training of 160 steps: (j)

    @property
    def parameters(self) -> int:
        """About: without those of the norms."""
        return 256 * self.width + 12 * self.layers * self.width**2


SIZES: Final[Mapping[str, Shape]] = {  # by parameters
    "33k": Shape(layers=2, heads=4, width=32, rate=1e-2),
    "0.1M": Shape(layers=2, heads=4, width=64, rate=5e-3),
    "1M": Shape(layers=3, heads=4, width=168, rate=2e-3),
    "3M": Shape(layers=4, heads=4, width=256, rate=1e-3),
    "10M": Shape(layers=5, heads=8, width=416, rate=1e-3),
    "120M": Shape(layers=17, heads=12, width=768, rate=6e-4),
}
STEPS, TOKENS, TIME = "steps", "tokens", "time"  # what is equal in the runs that are compared
STEP_SECONDS: Final = 2.0  # of virtual time, of a learner at usual speed
OPEN_SHARE: Final = 1.25  # of the steps, for a job that is stopped by time


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A learner that is not there for a part of the job; both times in steps at usual speed."""

    learner: int
    begins: float = 0.0
    ends: float | None = None  # None: it does not come again
    killed: bool = True  # else it leaves in peace


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run. Paces and ways are in steps at usual speed."""

    seed: int
    steps: int  # of a learner that is there from the first to the last
    learners: int = 4
    sync: Mapping[str, Any] | None = field(default_factory=dict)  # None: data-parallel training
    size: str = "33k"
    context: int = 32  # bytes of a window
    batch: int = 4  # windows in a learner's step
    rate: float = 3e-3  # of AdamW, at its peak
    muon_rate: float = 0.0  # of Muon for the matrices of the blocks; 0: AdamW for all
    ends: str = STEPS
    planned: int | None = None  # learners that the tokens are counted for; None: all
    paces: tuple[float, ...] = ()  # of the learners, over the usual one; none: all alike
    spread: float = 0.0  # of single steps: 0.17 are 83 to 117%
    way: float = 0.2  # in which a slice goes from a learner to the shard, or back
    last_way: float = 1.0  # times that of the last learner is as long
    away: tuple[Away, ...] = ()
    model: str = ""  # what is not production's: a name of engine.MODELS

    @property
    def shape(self) -> Shape:
        return SIZES[self.size]

    @property
    def step_tokens(self) -> int:
        return self.batch * self.context

    @property
    def tokens(self) -> int:
        """Trained by all learners together, if the tokens are what is equal."""
        learners = self.learners if self.planned is None else self.planned
        return self.steps * learners * self.step_tokens

    def job(self) -> RunFile:
        """As production reads a manifest with this `sync`; raises SpecError."""
        assert self.sync is not None, "data-parallel training has no job"
        steps = round(self.steps * OPEN_SHARE) if self.ends == TIME else self.steps
        length = {"tokens": self.tokens} if self.ends == TOKENS else {"steps": steps}
        spec = {
            **length,
            "seed": self.seed,
            "regions": [{"name": "a", "learners": self.learners}],
            "syncer": {"shards": 1},
            "sync": dict(self.sync),
        }
        return run_file(from_object({"metadata": {"name": "science"}, "spec": spec}))

    def to_json(self) -> dict[str, Any]:
        """What is not as usual: so a field more does not rename the runs that there are."""
        usual = asdict(Setting(seed=-1, steps=-1))
        given = {name: value for name, value in asdict(self).items() if value != usual[name]}
        found: dict[str, Any] = json.loads(json.dumps(given))
        return found

    @property
    def name(self) -> str:
        """Of its file: equal settings are one run, whichever experiments it belongs to."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
