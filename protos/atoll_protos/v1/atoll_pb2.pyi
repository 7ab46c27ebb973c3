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
    __slots__ = ("protocol", "run_hash", "layout_digest", "slot", "uid", "instance", "incarnation", "run", "held", "tick_seen", "epochs_seen", "t_m", "cursor", "observer", "starting", "frozen_digest", "lanes", "proof")
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
    frozen_digest: str
    lanes: int
    proof: str
    def __init__(self, protocol: _Optional[int] = ..., run_hash: _Optional[str] = ..., layout_digest: _Optional[str] = ..., slot: _Optional[str] = ..., uid: _Optional[str] = ..., instance: _Optional[str] = ..., incarnation: _Optional[int] = ..., run: _Optional[str] = ..., held: _Optional[_Iterable[_Union[SliceVersion, _Mapping]]] = ..., tick_seen: _Optional[int] = ..., epochs_seen: _Optional[_Iterable[int]] = ..., t_m: _Optional[int] = ..., cursor: _Optional[int] = ..., observer: bool = ..., starting: bool = ..., frozen_digest: _Optional[str] = ..., lanes: _Optional[int] = ..., proof: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("t_m", "step_seconds", "loss", "tokens", "cursor", "slices", "tick_seen", "epochs_seen", "publish_seconds", "training", "waiting", "finished", "busy_share", "blocked_seconds", "trouble", "late", "reached", "settled", "first_losses")
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
    FIRST_LOSSES_FIELD_NUMBER: _ClassVar[int]
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
    first_losses: int
    def __init__(self, t_m: _Optional[int] = ..., step_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., tokens: _Optional[int] = ..., cursor: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[SliceProgress, _Mapping]]] = ..., tick_seen: _Optional[int] = ..., epochs_seen: _Optional[_Iterable[int]] = ..., publish_seconds: _Optional[float] = ..., training: bool = ..., waiting: bool = ..., finished: bool = ..., busy_share: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., trouble: _Optional[str] = ..., late: _Optional[int] = ..., reached: _Optional[int] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., first_losses: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("welcome", "call", "tick", "send_seed", "send_held", "final", "end")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    SEND_SEED_FIELD_NUMBER: _ClassVar[int]
    SEND_HELD_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    call: Call
    tick: Tick
    send_seed: SendSeed
    send_held: SendHeld
    final: Final
    end: End
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., tick: _Optional[_Union[Tick, _Mapping]] = ..., send_seed: _Optional[_Union[SendSeed, _Mapping]] = ..., send_held: _Optional[_Union[SendHeld, _Mapping]] = ..., final: _Optional[_Union[Final, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("offer", "seed", "held", "publish", "encoding", "byte_count")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    offer: Offer
    seed: Seed
    held: Held
    publish: Publish
    encoding: Encoding
    byte_count: int
    def __init__(self, offer: _Optional[_Union[Offer, _Mapping]] = ..., seed: _Optional[_Union[Seed, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., publish: _Optional[_Union[Publish, _Mapping]] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., byte_count: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("slot", "state", "incarnation", "uid", "instance", "t_m", "step_seconds", "loss", "tokens", "tokens_here", "seconds_since_report", "cursor", "busy_share", "blocked_seconds", "owner_uid", "owner_generation", "merge_share", "merge_tokens_per_step", "merges_over_half", "above_tokens_per_step", "reason", "finished", "trouble", "late_share", "first_losses")
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
    OWNER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    MERGE_SHARE_FIELD_NUMBER: _ClassVar[int]
    MERGE_TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MERGES_OVER_HALF_FIELD_NUMBER: _ClassVar[int]
    ABOVE_TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LATE_SHARE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOSSES_FIELD_NUMBER: _ClassVar[int]
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
    owner_generation: int
    merge_share: float
    merge_tokens_per_step: float
    merges_over_half: int
    above_tokens_per_step: float
    reason: str
    finished: bool
    trouble: str
    late_share: float
    first_losses: int
    def __init__(self, slot: _Optional[str] = ..., state: _Optional[_Union[SlotState, str]] = ..., incarnation: _Optional[int] = ..., uid: _Optional[str] = ..., instance: _Optional[str] = ..., t_m: _Optional[int] = ..., step_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., tokens: _Optional[int] = ..., tokens_here: _Optional[int] = ..., seconds_since_report: _Optional[float] = ..., cursor: _Optional[int] = ..., busy_share: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., owner_uid: _Optional[str] = ..., owner_generation: _Optional[int] = ..., merge_share: _Optional[float] = ..., merge_tokens_per_step: _Optional[float] = ..., merges_over_half: _Optional[int] = ..., above_tokens_per_step: _Optional[float] = ..., reason: _Optional[str] = ..., finished: bool = ..., trouble: _Optional[str] = ..., late_share: _Optional[float] = ..., first_losses: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("run_hash",)
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    run_hash: str
    def __init__(self, run_hash: _Optional[str] = ...) -> None: ...

class ExportPiece(_message.Message):
    __slots__ = ("run", "tick", "model", "data", "digest")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run: str
    tick: int
    model: Model
    data: bytes
    digest: str
    def __init__(self, run: _Optional[str] = ..., tick: _Optional[int] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., data: _Optional[bytes] = ..., digest: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("slot", "uid", "generation")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    slot: str
    uid: str
    generation: int
    def __init__(self, slot: _Optional[str] = ..., uid: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class SetOwnerReply(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("protocol", "version", "token", "secret", "region", "name", "learners", "request", "hosts", "host", "slot", "rendezvous", "refused")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
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
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
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
    rendezvous: str
    refused: _containers.ScalarMap[str, str]
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., token: _Optional[str] = ..., secret: _Optional[str] = ..., region: _Optional[str] = ..., name: _Optional[str] = ..., learners: _Optional[int] = ..., request: _Optional[bytes] = ..., hosts: _Optional[int] = ..., host: _Optional[int] = ..., slot: _Optional[str] = ..., rendezvous: _Optional[str] = ..., refused: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EnterReply(_message.Message):
    __slots__ = ("refusal", "bundle", "run_file", "certificate", "authorities")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    RUN_FILE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    refusal: MachineRefusal
    bundle: str
    run_file: str
    certificate: bytes
    authorities: bytes
    def __init__(self, refusal: _Optional[_Union[MachineRefusal, _Mapping]] = ..., bundle: _Optional[str] = ..., run_file: _Optional[str] = ..., certificate: _Optional[bytes] = ..., authorities: _Optional[bytes] = ...) -> None: ...
