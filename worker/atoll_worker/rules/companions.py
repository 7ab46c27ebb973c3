"""What the registrar asks for beside values: the companion of the export (rule 36).

It asks one learner for the whole one, which is given at the next boundary. At the end it asks every
learner for what training has changed of it; that is given together with Finished, so that it is
what the model has then, and the process stays until the registrar has said that it has it.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import GiveCompanion
from atoll_worker.rules.effects import Command, Effect
from atoll_worker.rules.state import State


def asked(state: State, wanted: pb.SendCompanion) -> list[Effect]:
    """The registrar asks."""
    if not state.has_companion:
        return []
    if not wanted.changed:
        return [Command(GiveCompanion(changed=False))]
    state.companion_asked = True
    return finished(state)


def finished(state: State) -> list[Effect]:
    """The model has the job's values: give what was asked for at the end."""
    if not state.finished or not state.companion_asked:
        return []
    state.companion_asked, state.companion_owed = False, True
    return [Command(GiveCompanion(changed=True))]


def taken(state: State) -> None:
    """The registrar has it, from here or from another learner."""
    state.companion_owed = False


def disconnected(state: State) -> None:
    """The registrar's session is gone, and with it what was on its way; it asks again."""
    state.companion_asked = state.companion_owed = False
