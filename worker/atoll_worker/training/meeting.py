"""How the processes beside the owners of a learner find each other; collective.

The head's transport process listens on the address by which the ranks reach the head, on a port of
its own choice, and says which. The ranks tell each other address and a secret over gloo, and then
each further owner tells its lane process, which dials the head's transport. That one dials the
shards when all have come.
"""

import secrets
from dataclasses import replace

from atoll_protos.addresses import joined
from atoll_worker.link.messages import Configure
from atoll_worker.ranks.control import HEAD
from atoll_worker.ranks.group import Group
from atoll_worker.training.owner import Owner

SECRET_BYTES = 16


def configure_head(owner: Owner, ranks: Group | None, told: Configure) -> None:
    """Tell the transport process all, and the other owners where it waits for theirs."""
    hands = len(ranks.owners) - 1 if ranks is not None else 0
    if ranks is None or not hands:
        owner.send(told)
        return
    line, secret = ranks.lifeline, secrets.token_hex(SECRET_BYTES)
    silence = line.silence_seconds_max
    owner.send(
        replace(
            told,
            hands=hands,
            head=joined(line.listens, 0),
            secret=secret,
            silence_seconds=silence,
        )
    )
    ranks.told((joined(line.head, owner.listening()), secret))


def configure_hand(owner: Owner | None, ranks: Group, told: Configure | None) -> None:
    """On every other rank: hear where the head's transport is, and tell an own lane process."""
    if len(ranks.owners) == 1:
        return
    said = ranks.told(("", ""))[HEAD]
    if owner is not None and told is not None:
        silence = ranks.lifeline.silence_seconds_max
        owner.send(replace(told, head=said[0], secret=said[1], silence_seconds=silence))
