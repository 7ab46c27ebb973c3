"""All checkers, each run over every seed."""

from sim.checkers.claims import ClaimChecker
from sim.checkers.export import CompanionChecker, FinalChecker
from sim.checkers.kept import (
    CursorChecker,
    DataStateChecker,
    LengthChecker,
    OldRunChecker,
    SeenChecker,
    TokensChecker,
    WordChecker,
)
from sim.checkers.lanes import TrainingChecker, WholeSessionChecker, WholeVersionChecker
from sim.checkers.length import NewestLengthChecker
from sim.checkers.lies import LiesChecker
from sim.checkers.parts import NormsChecker, PlacesChecker, TransferChecker
from sim.checkers.progress import (
    CallChecker,
    ClockChecker,
    CloseChecker,
    LastRoundChecker,
    ProgressChecker,
)
from sim.checkers.ranks import HeadCountsChecker, LostRankChecker, OneOrderChecker
from sim.checkers.rounds import CreditChecker, OfferChecker, QuorumChecker, TickChecker
from sim.checkers.shut_out import ShutOutChecker
from sim.checkers.start import AdmissionChecker, IncarnationChecker, RunChecker, StartChecker
from sim.checkers.still import StillChecker
from sim.checkers.tape import TapeChecker
from sim.checkers.values import (
    DurableChecker,
    FenceChecker,
    LawChecker,
    LossChecker,
    MergedOnceChecker,
    MomentumChecker,
    NumberChecker,
)
from sim.watch import Watcher

ALL: tuple[type[Watcher], ...] = (
    StartChecker,
    RunChecker,
    AdmissionChecker,
    IncarnationChecker,
    TickChecker,
    CreditChecker,
    QuorumChecker,
    OfferChecker,
    MergedOnceChecker,
    LawChecker,
    DurableChecker,
    FenceChecker,
    LossChecker,
    NumberChecker,
    MomentumChecker,
    TapeChecker,
    CallChecker,
    CloseChecker,
    ProgressChecker,
    LastRoundChecker,
    ClockChecker,
    SeenChecker,
    LengthChecker,
    TokensChecker,
    NewestLengthChecker,
    OldRunChecker,
    WordChecker,
    CursorChecker,
    DataStateChecker,
    CompanionChecker,
    FinalChecker,
    LostRankChecker,
    OneOrderChecker,
    HeadCountsChecker,
    PlacesChecker,
    NormsChecker,
    TransferChecker,
    TrainingChecker,
    WholeSessionChecker,
    WholeVersionChecker,
    StillChecker,
    LiesChecker,
    ClaimChecker,
    ShutOutChecker,
)
