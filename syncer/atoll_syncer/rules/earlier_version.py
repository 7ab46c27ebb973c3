"""A version that is damaged, and that no learner holds: the one before it serves (rule 22).

Its object is kept until the version after the next one is durable. It comes back whole, with its
momentum and with the lineage that it had, so learners hear that what the damaged one had merged
beside is in no version: it is lost, and the entry's reason says how many tokens. It gets a number
above the damaged one's, and a later term's epoch, so no learner takes the one for the other.
"""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Effect, StorePrevious
from atoll_syncer.model.recovery import AskedHolder, Holder, Recovery
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.rounds import publishing

NO_SESSION: Final = -1
ITS_STORE: Final = "the shard's own store"


def can_serve(state: ShardState, recovery: Recovery, fragment: int) -> bool:
    """Whether it is known which version that is, and nothing is known against its object."""
    known = fragment in state.history.heads and fragment in state.history.previous
    return known and state.layout is not None and fragment not in recovery.damaged


def serve(state: ShardState, recovery: Recovery, fragment: int, now: float) -> list[Effect]:
    history = state.history
    head, before = history.heads[fragment], history.previous[fragment]
    version = pb.Version(run=history.run, number=before.number, epoch=before.epoch)
    merged = history.previous_merged.get(fragment, {}).values()
    lineage = [publishing.said(each) for each in merged]
    recovery.asked[fragment] = AskedHolder(
        holder=Holder(
            session=NO_SESSION,
            slot="",
            instance=ITS_STORE,
            number=before.number,
            epoch=before.epoch,
        ),
        at=now,
        held=pb.Held(version=pb.SliceVersion(slice=fragment, version=version), lineage=lineage),
        storing=True,
        merges=before.merges,
        reason=f"StoreRecovered: version {before.number} of epoch {before.epoch}, of the store;"
        f" version {head.number} is damaged, no learner holds it, and {head.tokens} tokens that it"
        " had merged are lost",
    )
    return [StorePrevious(fragment, max(head.number, before.number) + 1)]


def is_lost(state: ShardState, fragment: int) -> None:
    """It is damaged or gone as well."""
    if state.recovery is not None:
        state.recovery.asked.pop(fragment, None)
        state.recovery.damaged.add(fragment)
