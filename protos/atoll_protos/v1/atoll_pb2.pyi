from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    F32: _ClassVar[Encoding]
    BF16: _ClassVar[Encoding]
    INT8: _ClassVar[Encoding]
    INT4: _ClassVar[Encoding]
    INT2: _ClassVar[Encoding]

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODE_UNSPECIFIED: _ClassVar[Code]
    SUPERSEDED: _ClassVar[Code]
    OTHER_RUN_HASH: _ClassVar[Code]
    OTHER_LAYOUT: _ClassVar[Code]
    SLOT_HELD: _ClassVar[Code]
    UNKNOWN_SLOT: _ClassVar[Code]
    NOT_READY: _ClassVar[Code]
    BAD_MESSAGE: _ClassVar[Code]
    BAD_TRANSFER: _ClassVar[Code]
    OTHER_PROTOCOL: _ClassVar[Code]
    STORE_LOST: _ClassVar[Code]
    REPLACED: _ClassVar[Code]
    OTHER_RUN: _ClassVar[Code]
    OTHER_FROZEN: _ClassVar[Code]
    NOT_ALLOWED: _ClassVar[Code]
    TOO_MANY_LANES: _ClassVar[Code]
    OTHER_CHECKPOINT: _ClassVar[Code]

class Intent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INTENT_UNSPECIFIED: _ClassVar[Intent]
    INTENT_RUN: _ClassVar[Intent]
    INTENT_SUSPEND: _ClassVar[Intent]
    INTENT_FAIL: _ClassVar[Intent]

class ShardState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARD_STATE_UNSPECIFIED: _ClassVar[ShardState]
    SHARD_STARTING: _ClassVar[ShardState]
    SHARD_SEEDING: _ClassVar[ShardState]
    SHARD_RECOVERING: _ClassVar[ShardState]
    SHARD_SERVING: _ClassVar[ShardState]
    SHARD_FINAL: _ClassVar[ShardState]
    SHARD_COMPLETE: _ClassVar[ShardState]
    SHARD_FAILED: _ClassVar[ShardState]

class SlotState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOT_STATE_UNSPECIFIED: _ClassVar[SlotState]
    SLOT_JOINING: _ClassVar[SlotState]
    SLOT_RECOVERING: _ClassVar[SlotState]
    SLOT_TRAINING: _ClassVar[SlotState]
    SLOT_STALLED: _ClassVar[SlotState]
    SLOT_LOST: _ClassVar[SlotState]
    SLOT_LEFT: _ClassVar[SlotState]

class Prepares(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREPARES_UNSPECIFIED: _ClassVar[Prepares]
    PREPARES_OFFER: _ClassVar[Prepares]
    PREPARES_SEED: _ClassVar[Prepares]
    PREPARES_HELD: _ClassVar[Prepares]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_TRAINING: _ClassVar[JobState]
    JOB_FINAL: _ClassVar[JobState]
    JOB_COMPLETE: _ClassVar[JobState]
    JOB_FAILED: _ClassVar[JobState]
    JOB_SUSPENDED: _ClassVar[JobState]

class Sight(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIGHT_UNSPECIFIED: _ClassVar[Sight]
    SIGHT_STATUS: _ClassVar[Sight]
    SIGHT_LOGS: _ClassVar[Sight]
    SIGHT_CURVES: _ClassVar[Sight]
    SIGHT_SHARDS: _ClassVar[Sight]
    SIGHT_EXPORT: _ClassVar[Sight]

class Decision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_UNSPECIFIED: _ClassVar[Decision]
    DECISION_EDIT: _ClassVar[Decision]
    DECISION_SUSPEND: _ClassVar[Decision]
    DECISION_RESUME: _ClassVar[Decision]
    DECISION_STOP: _ClassVar[Decision]
    DECISION_CHECKPOINT: _ClassVar[Decision]
ENCODING_UNSPECIFIED: Encoding
F32: Encoding
BF16: Encoding
INT8: Encoding
INT4: Encoding
INT2: Encoding
CODE_UNSPECIFIED: Code
SUPERSEDED: Code
OTHER_RUN_HASH: Code
OTHER_LAYOUT: Code
SLOT_HELD: Code
UNKNOWN_SLOT: Code
NOT_READY: Code
BAD_MESSAGE: Code
BAD_TRANSFER: Code
OTHER_PROTOCOL: Code
STORE_LOST: Code
REPLACED: Code
OTHER_RUN: Code
OTHER_FROZEN: Code
NOT_ALLOWED: Code
TOO_MANY_LANES: Code
OTHER_CHECKPOINT: Code
INTENT_UNSPECIFIED: Intent
INTENT_RUN: Intent
INTENT_SUSPEND: Intent
INTENT_FAIL: Intent
SHARD_STATE_UNSPECIFIED: ShardState
SHARD_STARTING: ShardState
SHARD_SEEDING: ShardState
SHARD_RECOVERING: ShardState
SHARD_SERVING: ShardState
SHARD_FINAL: ShardState
SHARD_COMPLETE: ShardState
SHARD_FAILED: ShardState
SLOT_STATE_UNSPECIFIED: SlotState
SLOT_JOINING: SlotState
SLOT_RECOVERING: SlotState
SLOT_TRAINING: SlotState
SLOT_STALLED: SlotState
SLOT_LOST: SlotState
SLOT_LEFT: SlotState
PREPARES_UNSPECIFIED: Prepares
PREPARES_OFFER: Prepares
PREPARES_SEED: Prepares
PREPARES_HELD: Prepares
JOB_STATE_UNSPECIFIED: JobState
JOB_TRAINING: JobState
JOB_FINAL: JobState
JOB_COMPLETE: JobState
JOB_FAILED: JobState
JOB_SUSPENDED: JobState
SIGHT_UNSPECIFIED: Sight
SIGHT_STATUS: Sight
SIGHT_LOGS: Sight
SIGHT_CURVES: Sight
SIGHT_SHARDS: Sight
SIGHT_EXPORT: Sight
DECISION_UNSPECIFIED: Decision
DECISION_EDIT: Decision
DECISION_SUSPEND: Decision
DECISION_RESUME: Decision
DECISION_STOP: Decision
DECISION_CHECKPOINT: Decision

class Version(_message.Message):
    __slots__ = ("run", "number", "epoch", "digest")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run: str
    number: int
    epoch: int
    digest: str
    def __init__(self, run: _Optional[str] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class SliceVersion(_message.Message):
    __slots__ = ("slice", "version")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    slice: int
    version: Version
    def __init__(self, slice: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "shape", "dtype", "merge")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    merge: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., merge: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("tensors", "layout_digest")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    layout_digest: str
    def __init__(self, tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., layout_digest: _Optional[str] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("steps", "tokens")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    tokens: int
    def __init__(self, steps: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class ToShard(_message.Message):
    __slots__ = ("join", "report", "leave", "model", "evaluation")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    join: Join
    report: Report
    leave: Leave
    model: Model
    evaluation: Evaluation
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("protocol", "run_hash", "layout_digest", "slot", "uid", "instance", "incarnation", "run", "held", "tick_seen", "epochs_seen", "t_m", "cursor", "observer", "starting", "has_companion", "frozen_digest", "lanes", "proof")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TICK_SEEN_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_SEEN_FIELD_NUMBER: _ClassVar[int]
    T_M_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    OBSERVER_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    HAS_COMPANION_FIELD_NUMBER: _ClassVar[int]
    FROZEN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run_hash: str
    layout_digest: str
    slot: str
    uid: str
    instance: str
    incarnation: int
    run: str
    held: _containers.RepeatedCompositeFieldContainer[SliceVersion]
    tick_seen: int
    epochs_seen: _containers.RepeatedScalarFieldContainer[int]
    t_m: int
    cursor: int
    observer: bool
    starting: bool
    has_companion: bool
    frozen_digest: str
    lanes: int
    proof: str
    def __init__(self, protocol: _Optional[int] = ..., run_hash: _Optional[str] = ..., layout_digest: _Optional[str] = ..., slot: _Optional[str] = ..., uid: _Optional[str] = ..., instance: _Optional[str] = ..., incarnation: _Optional[int] = ..., run: _Optional[str] = ..., held: _Optional[_Iterable[_Union[SliceVersion, _Mapping]]] = ..., tick_seen: _Optional[int] = ..., epochs_seen: _Optional[_Iterable[int]] = ..., t_m: _Optional[int] = ..., cursor: _Optional[int] = ..., observer: bool = ..., starting: bool = ..., has_companion: bool = ..., frozen_digest: _Optional[str] = ..., lanes: _Optional[int] = ..., proof: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("t_m", "step_seconds", "loss", "tokens", "cursor", "slices", "tick_seen", "epochs_seen", "publish_seconds", "training", "waiting", "finished", "busy_share", "blocked_seconds", "trouble", "late", "reached", "settled")
    T_M_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    TICK_SEEN_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_SEEN_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    t_m: int
    step_seconds: float
    loss: float
    tokens: int
    cursor: int
    slices: _containers.RepeatedCompositeFieldContainer[SliceProgress]
    tick_seen: int
    epochs_seen: _containers.RepeatedScalarFieldContainer[int]
    publish_seconds: float
    training: bool
    waiting: bool
    finished: bool
    busy_share: float
    blocked_seconds: float
    trouble: str
    late: int
    reached: int
    settled: Settled
    def __init__(self, t_m: _Optional[int] = ..., step_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., tokens: _Optional[int] = ..., cursor: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[SliceProgress, _Mapping]]] = ..., tick_seen: _Optional[int] = ..., epochs_seen: _Optional[_Iterable[int]] = ..., publish_seconds: _Optional[float] = ..., training: bool = ..., waiting: bool = ..., finished: bool = ..., busy_share: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., trouble: _Optional[str] = ..., late: _Optional[int] = ..., reached: _Optional[int] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ...) -> None: ...

class SliceProgress(_message.Message):
    __slots__ = ("slice", "held", "since", "digest", "handed_over")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    slice: int
    held: int
    since: Counters
    digest: str
    handed_over: bool
    def __init__(self, slice: _Optional[int] = ..., held: _Optional[int] = ..., since: _Optional[_Union[Counters, _Mapping]] = ..., digest: _Optional[str] = ..., handed_over: bool = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("merged", "overlap", "late")
    MERGED_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    merged: int
    overlap: int
    late: int
    def __init__(self, merged: _Optional[int] = ..., overlap: _Optional[int] = ..., late: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("tick", "loss", "tokens", "seconds", "final")
    TICK_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    tick: int
    loss: float
    tokens: int
    seconds: float
    final: bool
    def __init__(self, tick: _Optional[int] = ..., loss: _Optional[float] = ..., tokens: _Optional[int] = ..., seconds: _Optional[float] = ..., final: bool = ...) -> None: ...

class ToLearner(_message.Message):
    __slots__ = ("welcome", "call", "tick", "send_seed", "send_held", "final", "end", "send_companion", "companion_taken")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    SEND_SEED_FIELD_NUMBER: _ClassVar[int]
    SEND_HELD_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEND_COMPANION_FIELD_NUMBER: _ClassVar[int]
    COMPANION_TAKEN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    call: Call
    tick: Tick
    send_seed: SendSeed
    send_held: SendHeld
    final: Final
    end: End
    send_companion: SendCompanion
    companion_taken: CompanionTaken
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., tick: _Optional[_Union[Tick, _Mapping]] = ..., send_seed: _Optional[_Union[SendSeed, _Mapping]] = ..., send_held: _Optional[_Union[SendHeld, _Mapping]] = ..., final: _Optional[_Union[Final, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., send_companion: _Optional[_Union[SendCompanion, _Mapping]] = ..., companion_taken: _Optional[_Union[CompanionTaken, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "incarnation", "epoch", "session", "tick", "cursor", "needs_model", "newest", "secret", "data_state", "length", "lanes", "proof")
    RUN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    NEEDS_MODEL_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    DATA_STATE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    run: str
    incarnation: int
    epoch: int
    session: int
    tick: int
    cursor: int
    needs_model: bool
    newest: _containers.RepeatedCompositeFieldContainer[SliceVersion]
    secret: str
    data_state: bytes
    length: Length
    lanes: int
    proof: str
    def __init__(self, run: _Optional[str] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., session: _Optional[int] = ..., tick: _Optional[int] = ..., cursor: _Optional[int] = ..., needs_model: bool = ..., newest: _Optional[_Iterable[_Union[SliceVersion, _Mapping]]] = ..., secret: _Optional[str] = ..., data_state: _Optional[bytes] = ..., length: _Optional[_Union[Length, _Mapping]] = ..., lanes: _Optional[int] = ..., proof: _Optional[str] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("slice", "base", "due")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    slice: int
    base: int
    due: int
    def __init__(self, slice: _Optional[int] = ..., base: _Optional[int] = ..., due: _Optional[int] = ...) -> None: ...

class Tick(_message.Message):
    __slots__ = ("tick", "length")
    TICK_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    tick: int
    length: Length
    def __init__(self, tick: _Optional[int] = ..., length: _Optional[_Union[Length, _Mapping]] = ...) -> None: ...

class Length(_message.Message):
    __slots__ = ("revision", "steps", "tokens", "ends")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    steps: int
    tokens: int
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, revision: _Optional[int] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class SendSeed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SendHeld(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: SliceVersion
    def __init__(self, version: _Optional[_Union[SliceVersion, _Mapping]] = ...) -> None: ...

class SendCompanion(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class CompanionTaken(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Final(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[SliceVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[SliceVersion, _Mapping]]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("code", "reason", "remedy", "retry", "model")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    code: Code
    reason: str
    remedy: str
    retry: bool
    model: Model
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., reason: _Optional[str] = ..., remedy: _Optional[str] = ..., retry: bool = ..., model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("offer", "seed", "held", "publish", "companion", "encoding", "byte_count")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    COMPANION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    offer: Offer
    seed: Seed
    held: Held
    publish: Publish
    companion: Companion
    encoding: Encoding
    byte_count: int
    def __init__(self, offer: _Optional[_Union[Offer, _Mapping]] = ..., seed: _Optional[_Union[Seed, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., publish: _Optional[_Union[Publish, _Mapping]] = ..., companion: _Optional[_Union[Companion, _Mapping]] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., byte_count: _Optional[int] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("slice", "base", "capture", "counters", "t_m", "cursor", "base_digest", "data_state", "same_data_state")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    T_M_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_STATE_FIELD_NUMBER: _ClassVar[int]
    SAME_DATA_STATE_FIELD_NUMBER: _ClassVar[int]
    slice: int
    base: int
    capture: int
    counters: Counters
    t_m: int
    cursor: int
    base_digest: str
    data_state: bytes
    same_data_state: bool
    def __init__(self, slice: _Optional[int] = ..., base: _Optional[int] = ..., capture: _Optional[int] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., t_m: _Optional[int] = ..., cursor: _Optional[int] = ..., base_digest: _Optional[str] = ..., data_state: _Optional[bytes] = ..., same_data_state: bool = ...) -> None: ...

class Seed(_message.Message):
    __slots__ = ("slice",)
    SLICE_FIELD_NUMBER: _ClassVar[int]
    slice: int
    def __init__(self, slice: _Optional[int] = ...) -> None: ...

class Companion(_message.Message):
    __slots__ = ("changed", "part", "companion_bytes")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    COMPANION_BYTES_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    part: int
    companion_bytes: int
    def __init__(self, changed: bool = ..., part: _Optional[int] = ..., companion_bytes: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("version", "lineage")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    version: SliceVersion
    lineage: _containers.RepeatedCompositeFieldContainer[SlotMerged]
    def __init__(self, version: _Optional[_Union[SliceVersion, _Mapping]] = ..., lineage: _Optional[_Iterable[_Union[SlotMerged, _Mapping]]] = ...) -> None: ...

class Publish(_message.Message):
    __slots__ = ("version", "difference", "base", "merged", "tick", "last", "lineage")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    version: SliceVersion
    difference: bool
    base: int
    merged: Merged
    tick: int
    last: bool
    lineage: _containers.RepeatedCompositeFieldContainer[SlotMerged]
    def __init__(self, version: _Optional[_Union[SliceVersion, _Mapping]] = ..., difference: bool = ..., base: _Optional[int] = ..., merged: _Optional[_Union[Merged, _Mapping]] = ..., tick: _Optional[int] = ..., last: bool = ..., lineage: _Optional[_Iterable[_Union[SlotMerged, _Mapping]]] = ...) -> None: ...

class Merged(_message.Message):
    __slots__ = ("incarnation", "base", "capture")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    base: int
    capture: int
    def __init__(self, incarnation: _Optional[int] = ..., base: _Optional[int] = ..., capture: _Optional[int] = ...) -> None: ...

class SlotMerged(_message.Message):
    __slots__ = ("slot", "incarnation", "base", "capture", "cursor", "trained")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    slot: str
    incarnation: int
    base: int
    capture: int
    cursor: int
    trained: Trained
    def __init__(self, slot: _Optional[str] = ..., incarnation: _Optional[int] = ..., base: _Optional[int] = ..., capture: _Optional[int] = ..., cursor: _Optional[int] = ..., trained: _Optional[_Union[Trained, _Mapping]] = ...) -> None: ...

class Trained(_message.Message):
    __slots__ = ("incarnation", "before", "now", "said", "settled", "settled_before", "parent")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    before: int
    now: int
    said: int
    settled: Settled
    settled_before: Settled
    parent: int
    def __init__(self, incarnation: _Optional[int] = ..., before: _Optional[int] = ..., now: _Optional[int] = ..., said: _Optional[int] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., settled_before: _Optional[_Union[Settled, _Mapping]] = ..., parent: _Optional[int] = ...) -> None: ...

class Trailer(_message.Message):
    __slots__ = ("byte_count", "checksum")
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    byte_count: int
    checksum: int
    def __init__(self, byte_count: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("intent", "why")
    INTENT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    intent: Intent
    why: str
    def __init__(self, intent: _Optional[_Union[Intent, str]] = ..., why: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("run", "shard", "epoch", "state", "reason", "tick", "steps", "slots", "commits", "quorum", "grace_seconds", "bytes_received", "bytes_sent", "registrar", "ticks_per_second", "evaluation", "refused_zombies", "intent", "why", "must_equal", "refused_peer", "seconds_since_refused_peer", "late_share", "tokens", "trained", "checkpoint", "instance", "unread", "counts", "merges", "merged_offers", "seconds", "training_seconds", "links", "learners")
    class LearnersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    REGISTRAR_FIELD_NUMBER: _ClassVar[int]
    TICKS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ZOMBIES_FIELD_NUMBER: _ClassVar[int]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    MUST_EQUAL_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PEER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_REFUSED_PEER_FIELD_NUMBER: _ClassVar[int]
    LATE_SHARE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    MERGES_FIELD_NUMBER: _ClassVar[int]
    MERGED_OFFERS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    run: str
    shard: int
    epoch: int
    state: ShardState
    reason: str
    tick: int
    steps: int
    slots: _containers.RepeatedCompositeFieldContainer[SlotStatus]
    commits: int
    quorum: int
    grace_seconds: float
    bytes_received: int
    bytes_sent: int
    registrar: bool
    ticks_per_second: float
    evaluation: Evaluation
    refused_zombies: int
    intent: Intent
    why: str
    must_equal: str
    refused_peer: str
    seconds_since_refused_peer: float
    late_share: float
    tokens: int
    trained: int
    checkpoint: str
    instance: str
    unread: int
    counts: Tokens
    merges: int
    merged_offers: int
    seconds: float
    training_seconds: float
    links: _containers.RepeatedCompositeFieldContainer[LinkBytes]
    learners: _containers.ScalarMap[str, int]
    def __init__(self, run: _Optional[str] = ..., shard: _Optional[int] = ..., epoch: _Optional[int] = ..., state: _Optional[_Union[ShardState, str]] = ..., reason: _Optional[str] = ..., tick: _Optional[int] = ..., steps: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[SlotStatus, _Mapping]]] = ..., commits: _Optional[int] = ..., quorum: _Optional[int] = ..., grace_seconds: _Optional[float] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., registrar: bool = ..., ticks_per_second: _Optional[float] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., refused_zombies: _Optional[int] = ..., intent: _Optional[_Union[Intent, str]] = ..., why: _Optional[str] = ..., must_equal: _Optional[str] = ..., refused_peer: _Optional[str] = ..., seconds_since_refused_peer: _Optional[float] = ..., late_share: _Optional[float] = ..., tokens: _Optional[int] = ..., trained: _Optional[int] = ..., checkpoint: _Optional[str] = ..., instance: _Optional[str] = ..., unread: _Optional[int] = ..., counts: _Optional[_Union[Tokens, _Mapping]] = ..., merges: _Optional[int] = ..., merged_offers: _Optional[int] = ..., seconds: _Optional[float] = ..., training_seconds: _Optional[float] = ..., links: _Optional[_Iterable[_Union[LinkBytes, _Mapping]]] = ..., learners: _Optional[_Mapping[str, int]] = ...) -> None: ...

class LinkBytes(_message.Message):
    __slots__ = ("region", "received", "sent", "machine")
    REGION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    region: str
    received: int
    sent: int
    machine: str
    def __init__(self, region: _Optional[str] = ..., received: _Optional[int] = ..., sent: _Optional[int] = ..., machine: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("trained", "merged", "overlap", "late", "lost", "pending", "slices")
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    trained: int
    merged: int
    overlap: int
    late: int
    lost: int
    pending: int
    slices: int
    def __init__(self, trained: _Optional[int] = ..., merged: _Optional[int] = ..., overlap: _Optional[int] = ..., late: _Optional[int] = ..., lost: _Optional[int] = ..., pending: _Optional[int] = ..., slices: _Optional[int] = ...) -> None: ...

class SlotStatus(_message.Message):
    __slots__ = ("slot", "state", "incarnation", "uid", "instance", "t_m", "step_seconds", "loss", "tokens", "tokens_here", "seconds_since_report", "cursor", "busy_share", "blocked_seconds", "owner_uid", "owner_word", "merge_share", "merge_tokens_per_step", "merges_over_half", "above_tokens_per_step", "reason", "finished", "trouble", "late_share")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    T_M_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_HERE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_REPORT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OWNER_UID_FIELD_NUMBER: _ClassVar[int]
    OWNER_WORD_FIELD_NUMBER: _ClassVar[int]
    MERGE_SHARE_FIELD_NUMBER: _ClassVar[int]
    MERGE_TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MERGES_OVER_HALF_FIELD_NUMBER: _ClassVar[int]
    ABOVE_TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LATE_SHARE_FIELD_NUMBER: _ClassVar[int]
    slot: str
    state: SlotState
    incarnation: int
    uid: str
    instance: str
    t_m: int
    step_seconds: float
    loss: float
    tokens: int
    tokens_here: int
    seconds_since_report: float
    cursor: int
    busy_share: float
    blocked_seconds: float
    owner_uid: str
    owner_word: int
    merge_share: float
    merge_tokens_per_step: float
    merges_over_half: int
    above_tokens_per_step: float
    reason: str
    finished: bool
    trouble: str
    late_share: float
    def __init__(self, slot: _Optional[str] = ..., state: _Optional[_Union[SlotState, str]] = ..., incarnation: _Optional[int] = ..., uid: _Optional[str] = ..., instance: _Optional[str] = ..., t_m: _Optional[int] = ..., step_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., tokens: _Optional[int] = ..., tokens_here: _Optional[int] = ..., seconds_since_report: _Optional[float] = ..., cursor: _Optional[int] = ..., busy_share: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., owner_uid: _Optional[str] = ..., owner_word: _Optional[int] = ..., merge_share: _Optional[float] = ..., merge_tokens_per_step: _Optional[float] = ..., merges_over_half: _Optional[int] = ..., above_tokens_per_step: _Optional[float] = ..., reason: _Optional[str] = ..., finished: bool = ..., trouble: _Optional[str] = ..., late_share: _Optional[float] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("run_hash",)
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    run_hash: str
    def __init__(self, run_hash: _Optional[str] = ...) -> None: ...

class ExportPiece(_message.Message):
    __slots__ = ("run", "tick", "model", "file", "data", "digest")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run: str
    tick: int
    model: Model
    file: int
    data: bytes
    digest: str
    def __init__(self, run: _Optional[str] = ..., tick: _Optional[int] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., file: _Optional[int] = ..., data: _Optional[bytes] = ..., digest: _Optional[str] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("shard", "run_hash", "run", "empty", "tick", "taken", "length", "named", "checkpoint")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    shard: int
    run_hash: str
    run: str
    empty: bool
    tick: int
    taken: _containers.RepeatedCompositeFieldContainer[SlotTaken]
    length: Length
    named: _containers.RepeatedCompositeFieldContainer[RunNamed]
    checkpoint: str
    def __init__(self, shard: _Optional[int] = ..., run_hash: _Optional[str] = ..., run: _Optional[str] = ..., empty: bool = ..., tick: _Optional[int] = ..., taken: _Optional[_Iterable[_Union[SlotTaken, _Mapping]]] = ..., length: _Optional[_Union[Length, _Mapping]] = ..., named: _Optional[_Iterable[_Union[RunNamed, _Mapping]]] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class RunNamed(_message.Message):
    __slots__ = ("run", "slot")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    run: str
    slot: str
    def __init__(self, run: _Optional[str] = ..., slot: _Optional[str] = ...) -> None: ...

class SlotTaken(_message.Message):
    __slots__ = ("slot", "incarnation", "uid", "instance")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    slot: str
    incarnation: int
    uid: str
    instance: str
    def __init__(self, slot: _Optional[str] = ..., incarnation: _Optional[int] = ..., uid: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("run", "begun", "alive", "complete", "final", "tick", "length", "incomplete", "key", "checkpoint")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    run: str
    begun: bool
    alive: _containers.RepeatedScalarFieldContainer[str]
    complete: bool
    final: bool
    tick: int
    length: Length
    incomplete: bool
    key: str
    checkpoint: str
    def __init__(self, run: _Optional[str] = ..., begun: bool = ..., alive: _Optional[_Iterable[str]] = ..., complete: bool = ..., final: bool = ..., tick: _Optional[int] = ..., length: _Optional[_Union[Length, _Mapping]] = ..., incomplete: bool = ..., key: _Optional[str] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class MarkBegunRequest(_message.Message):
    __slots__ = ("shard", "run")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    shard: int
    run: str
    def __init__(self, shard: _Optional[int] = ..., run: _Optional[str] = ...) -> None: ...

class MarkBegunReply(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class ReportFinalRequest(_message.Message):
    __slots__ = ("shard", "file", "file_digest")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    FILE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    file: str
    file_digest: str
    def __init__(self, shard: _Optional[int] = ..., file: _Optional[str] = ..., file_digest: _Optional[str] = ...) -> None: ...

class ReportFinalReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetOwnerRequest(_message.Message):
    __slots__ = ("slot", "uid", "word")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    slot: str
    uid: str
    word: int
    def __init__(self, slot: _Optional[str] = ..., uid: _Optional[str] = ..., word: _Optional[int] = ...) -> None: ...

class SetOwnerReply(_message.Message):
    __slots__ = ("word",)
    WORD_FIELD_NUMBER: _ClassVar[int]
    word: int
    def __init__(self, word: _Optional[int] = ...) -> None: ...

class ToLaneProcess(_message.Message):
    __slots__ = ("beat", "left", "opened", "closed", "prepare", "numbered", "drop", "keep", "forget", "place", "promote", "discard")
    BEAT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    NUMBERED_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    beat: Beat
    left: Left
    opened: LanesOpened
    closed: LanesClosed
    prepare: Prepare
    numbered: Numbered
    drop: Drop
    keep: Keep
    forget: Forget
    place: PlaceShare
    promote: PromoteShare
    discard: DiscardShare
    def __init__(self, beat: _Optional[_Union[Beat, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., opened: _Optional[_Union[LanesOpened, _Mapping]] = ..., closed: _Optional[_Union[LanesClosed, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., numbered: _Optional[_Union[Numbered, _Mapping]] = ..., drop: _Optional[_Union[Drop, _Mapping]] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., place: _Optional[_Union[PlaceShare, _Mapping]] = ..., promote: _Optional[_Union[PromoteShare, _Mapping]] = ..., discard: _Optional[_Union[DiscardShare, _Mapping]] = ...) -> None: ...

class ToHead(_message.Message):
    __slots__ = ("beat", "left", "hello", "prepared", "verified", "placed", "lanes_lost")
    BEAT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    LANES_LOST_FIELD_NUMBER: _ClassVar[int]
    beat: Beat
    left: Left
    hello: LaneHello
    prepared: Prepared
    verified: Verified
    placed: Placed
    lanes_lost: LanesLost
    def __init__(self, beat: _Optional[_Union[Beat, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., hello: _Optional[_Union[LaneHello, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., verified: _Optional[_Union[Verified, _Mapping]] = ..., placed: _Optional[_Union[Placed, _Mapping]] = ..., lanes_lost: _Optional[_Union[LanesLost, _Mapping]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Left(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LaneHello(_message.Message):
    __slots__ = ("first", "stop", "lanes")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    first: int
    stop: int
    lanes: int
    def __init__(self, first: _Optional[int] = ..., stop: _Optional[int] = ..., lanes: _Optional[int] = ...) -> None: ...

class LanesOpened(_message.Message):
    __slots__ = ("shard", "opening", "session", "secret")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    shard: int
    opening: int
    session: int
    secret: str
    def __init__(self, shard: _Optional[int] = ..., opening: _Optional[int] = ..., session: _Optional[int] = ..., secret: _Optional[str] = ...) -> None: ...

class LanesClosed(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("order", "what", "shard", "fragments", "capture")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    order: int
    what: Prepares
    shard: int
    fragments: _containers.RepeatedScalarFieldContainer[int]
    capture: int
    def __init__(self, order: _Optional[int] = ..., what: _Optional[_Union[Prepares, str]] = ..., shard: _Optional[int] = ..., fragments: _Optional[_Iterable[int]] = ..., capture: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("order", "lost", "not_finite")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NOT_FINITE_FIELD_NUMBER: _ClassVar[int]
    order: int
    lost: bool
    not_finite: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, order: _Optional[int] = ..., lost: bool = ..., not_finite: _Optional[_Iterable[str]] = ...) -> None: ...

class Numbered(_message.Message):
    __slots__ = ("order", "shard", "fragment", "number", "head")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    order: int
    shard: int
    fragment: int
    number: int
    head: Transfer
    def __init__(self, order: _Optional[int] = ..., shard: _Optional[int] = ..., fragment: _Optional[int] = ..., number: _Optional[int] = ..., head: _Optional[_Union[Transfer, _Mapping]] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("order",)
    ORDER_FIELD_NUMBER: _ClassVar[int]
    order: int
    def __init__(self, order: _Optional[int] = ...) -> None: ...

class Verified(_message.Message):
    __slots__ = ("shard", "opening", "fragment", "number", "digest")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    opening: int
    fragment: int
    number: int
    digest: str
    def __init__(self, shard: _Optional[int] = ..., opening: _Optional[int] = ..., fragment: _Optional[int] = ..., number: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("shard", "fragment", "number")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    shard: int
    fragment: int
    number: int
    def __init__(self, shard: _Optional[int] = ..., fragment: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("shard", "fragment", "number")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    shard: int
    fragment: int
    number: int
    def __init__(self, shard: _Optional[int] = ..., fragment: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class PlaceShare(_message.Message):
    __slots__ = ("order", "shard", "fragment", "version")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    order: int
    shard: int
    fragment: int
    version: int
    def __init__(self, order: _Optional[int] = ..., shard: _Optional[int] = ..., fragment: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Placed(_message.Message):
    __slots__ = ("order",)
    ORDER_FIELD_NUMBER: _ClassVar[int]
    order: int
    def __init__(self, order: _Optional[int] = ...) -> None: ...

class PromoteShare(_message.Message):
    __slots__ = ("shard", "fragment", "version")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    shard: int
    fragment: int
    version: int
    def __init__(self, shard: _Optional[int] = ..., fragment: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class DiscardShare(_message.Message):
    __slots__ = ("shard", "fragment", "version")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    shard: int
    fragment: int
    version: int
    def __init__(self, shard: _Optional[int] = ..., fragment: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class LanesLost(_message.Message):
    __slots__ = ("shard", "opening", "reason", "remedy")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    shard: int
    opening: int
    reason: str
    remedy: str
    def __init__(self, shard: _Optional[int] = ..., opening: _Optional[int] = ..., reason: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class MachineRefusal(_message.Message):
    __slots__ = ("field", "problem", "remedy")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    field: str
    problem: str
    remedy: str
    def __init__(self, field: _Optional[str] = ..., problem: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class EnterRequest(_message.Message):
    __slots__ = ("protocol", "version", "token", "secret", "region", "name", "learners", "request", "hosts", "host", "slot")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    token: str
    secret: str
    region: str
    name: str
    learners: int
    request: bytes
    hosts: int
    host: int
    slot: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., token: _Optional[str] = ..., secret: _Optional[str] = ..., region: _Optional[str] = ..., name: _Optional[str] = ..., learners: _Optional[int] = ..., request: _Optional[bytes] = ..., hosts: _Optional[int] = ..., host: _Optional[int] = ..., slot: _Optional[str] = ...) -> None: ...

class EnterReply(_message.Message):
    __slots__ = ("refusal", "name", "secret", "region", "slots", "certificate", "authorities", "run_file", "container", "watch", "job", "hosts", "hosts_min")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    RUN_FILE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_MIN_FIELD_NUMBER: _ClassVar[int]
    refusal: MachineRefusal
    name: str
    secret: str
    region: str
    slots: _containers.RepeatedScalarFieldContainer[str]
    certificate: bytes
    authorities: bytes
    run_file: str
    container: str
    watch: WatchReply
    job: str
    hosts: int
    hosts_min: int
    def __init__(self, refusal: _Optional[_Union[MachineRefusal, _Mapping]] = ..., name: _Optional[str] = ..., secret: _Optional[str] = ..., region: _Optional[str] = ..., slots: _Optional[_Iterable[str]] = ..., certificate: _Optional[bytes] = ..., authorities: _Optional[bytes] = ..., run_file: _Optional[str] = ..., container: _Optional[str] = ..., watch: _Optional[_Union[WatchReply, _Mapping]] = ..., job: _Optional[str] = ..., hosts: _Optional[int] = ..., hosts_min: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("name", "secret", "request")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    secret: str
    request: bytes
    def __init__(self, name: _Optional[str] = ..., secret: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("refusal", "certificate", "authorities")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    refusal: MachineRefusal
    certificate: bytes
    authorities: bytes
    def __init__(self, refusal: _Optional[_Union[MachineRefusal, _Mapping]] = ..., certificate: _Optional[bytes] = ..., authorities: _Optional[bytes] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("protocol", "version", "name", "secret", "round_trip_seconds", "rendezvous")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    name: str
    secret: str
    round_trip_seconds: float
    rendezvous: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., secret: _Optional[str] = ..., round_trip_seconds: _Optional[float] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("refusal", "state", "why", "tick", "endpoints", "authorities_digest", "length", "rendezvous")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    refusal: MachineRefusal
    state: JobState
    why: str
    tick: int
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    authorities_digest: str
    length: int
    rendezvous: str
    def __init__(self, refusal: _Optional[_Union[MachineRefusal, _Mapping]] = ..., state: _Optional[_Union[JobState, str]] = ..., why: _Optional[str] = ..., tick: _Optional[int] = ..., endpoints: _Optional[_Iterable[str]] = ..., authorities_digest: _Optional[str] = ..., length: _Optional[int] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class LookRequest(_message.Message):
    __slots__ = ("protocol", "version", "token", "secret", "sight", "follow", "tail")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SIGHT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    token: str
    secret: str
    sight: Sight
    follow: bool
    tail: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., token: _Optional[str] = ..., secret: _Optional[str] = ..., sight: _Optional[_Union[Sight, str]] = ..., follow: bool = ..., tail: _Optional[int] = ...) -> None: ...

class LookReply(_message.Message):
    __slots__ = ("refusal", "file", "whole", "shard", "model")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    refusal: MachineRefusal
    file: FilePiece
    whole: bool
    shard: ShardAnswer
    model: bytes
    def __init__(self, refusal: _Optional[_Union[MachineRefusal, _Mapping]] = ..., file: _Optional[_Union[FilePiece, _Mapping]] = ..., whole: bool = ..., shard: _Optional[_Union[ShardAnswer, _Mapping]] = ..., model: _Optional[bytes] = ...) -> None: ...

class FilePiece(_message.Message):
    __slots__ = ("name", "data", "begins", "age_seconds", "left_out_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    begins: bool
    age_seconds: float
    left_out_bytes: int
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ..., begins: bool = ..., age_seconds: _Optional[float] = ..., left_out_bytes: _Optional[int] = ...) -> None: ...

class ShardAnswer(_message.Message):
    __slots__ = ("endpoint", "reply", "at")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    reply: StatusReply
    at: float
    def __init__(self, endpoint: _Optional[str] = ..., reply: _Optional[_Union[StatusReply, _Mapping]] = ..., at: _Optional[float] = ...) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("protocol", "version", "token", "secret", "decision", "learners", "steps", "tokens", "checkpoint_step")
    class LearnersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    token: str
    secret: str
    decision: Decision
    learners: _containers.ScalarMap[str, int]
    steps: int
    tokens: int
    checkpoint_step: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., token: _Optional[str] = ..., secret: _Optional[str] = ..., decision: _Optional[_Union[Decision, str]] = ..., learners: _Optional[_Mapping[str, int]] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., checkpoint_step: _Optional[int] = ...) -> None: ...

class ChangeReply(_message.Message):
    __slots__ = ("refusal", "lines")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    refusal: MachineRefusal
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, refusal: _Optional[_Union[MachineRefusal, _Mapping]] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...
