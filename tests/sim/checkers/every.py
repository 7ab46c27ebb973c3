"""All checkers, each run over every seed."""

from sim.checkers.rounds import CreditChecker, OfferChecker, QuorumChecker, TickChecker
from sim.checkers.start import AdmissionChecker, IncarnationChecker, RunChecker, StartChecker
from sim.checkers.tape import TapeChecker
from sim.checkers.values import (
    DurableChecker,
    FenceChecker,
    LawChecker,
    LossChecker,
    MergedOnceChecker,
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
    TapeChecker,
)
