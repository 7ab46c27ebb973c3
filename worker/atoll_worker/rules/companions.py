"""What the registrar asks for beside values: the companion of the export (rule 36).

The registrar asks for what training has changed of it before its Final, so Finished is one command
with that: a learner that is finished leaves.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import GiveCompanion
from atoll_worker.rules.effects import Command, Effect
from atoll_worker.rules.learner_state import LearnerState


def asked(state: LearnerState, wanted: pb.SendCompanion) -> list[Effect]:
    if not state.configure.has_companion:
        return []
    if not wanted.changed:
        return [Command(GiveCompanion(changed=False))]
    if not state.finished:
        state.companion_asked = True
        return []
    state.companion_owed = True
    return [Command(GiveCompanion(changed=True))]


def finished(state: LearnerState) -> bool:
    """The model has the job's values: whether what has changed was asked for, and is owed now."""
    state.companion_asked, state.companion_owed = False, state.companion_asked
    return state.companion_owed


def taken(state: LearnerState) -> None:
    """The registrar has all that it needs, from here or from other learners."""
    state.companion_owed = False


def disconnected(state: LearnerState) -> None:
    """The registrar's session is gone, and with it what was on its way; it asks again."""
    state.companion_asked = state.companion_owed = False
