"""Shard 0 in its second job: what other shards and the operator call (rules 1, 2, 4, 27)."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, Reply
from atoll_syncer.model.state import State
from atoll_syncer.rules import runs
from atoll_syncer.rules.admission import end_session


def requested(state: State, token: int, request: Any) -> list[Effect]:
    """A call; its Reply follows once what it changes is durable."""
    match request:
        case pb.HelloRequest():
            return _hello(state, token, request)
        case pb.MarkBegunRequest():
            known = request.shard in state.history.begun
            entry = log.Begun(shard=request.shard)
            return [*([] if known else [Append(entry)]), Reply(token, pb.MarkBegunReply())]
        case pb.ReportFinalRequest():
            known = request.shard in state.history.finals
            part = log.ShardFinal(
                shard=request.shard, file=request.file, digest=request.file_digest
            )
            return [*([] if known else [Append(part)]), Reply(token, pb.ReportFinalReply())]
        case pb.SetOwnerRequest():
            return _set_owner(state, token, request)
    raise AssertionError(f"{request} is no registrar call")


def _hello(state: State, token: int, request: pb.HelloRequest) -> list[Effect]:
    runs.heard_shard(state, request)
    reply = pb.HelloReply(
        run=state.history.run,
        begun=request.shard in state.history.begun,
        alive=[name for name, slot in state.slots.items() if slot.session is not None],
        complete=state.complete,
        final=request.shard in state.history.finals,
    )
    return [Reply(token, reply)]


def _set_owner(state: State, token: int, request: pb.SetOwnerRequest) -> list[Effect]:
    """Rule 4: the operator's word counts when it knew the word before it."""
    owned = state.history.owned.get(request.slot)
    word = owned.word if owned else 0
    if request.word != word:
        return [Reply(token, pb.SetOwnerReply(word=word))]
    entry = log.Owned(slot=request.slot, uid=request.uid, word=word + 1)
    effects: list[Effect] = [Append(entry)]
    slot = state.slots.get(request.slot)
    session = None if slot is None else slot.session
    if session is not None and state.sessions[session].join.uid != request.uid:
        effects.append(end_session(session, pb.SUPERSEDED, "the operator named another pod"))
    return [*effects, Reply(token, pb.SetOwnerReply(word=word + 1))]
