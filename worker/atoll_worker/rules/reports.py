"""What a learner tells its shards: after every boundary, and when none comes (rule 7)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import DIGEST_DIGITS
from atoll_worker.rules.effects import Effect, Record, SendMessage
from atoll_worker.rules.state import State


def report(state: State) -> list[Effect]:
    """The newest to every shard; each is a mailbox in which the latest wins."""
    if state.observer or state.leaving:
        return []
    return [
        SendMessage(shard, pb.ToShard(report=report_to(state, shard)))
        for shard, side in enumerate(state.sides)
        if side.welcomed
    ]


def report_to(state: State, shard: int) -> pb.Report:
    """As one shard gets it: of the slices only its own."""
    work = state.work
    return pb.Report(
        t_m=work.position,
        step_seconds=work.step_seconds,
        loss=work.loss,
        tokens=work.tokens,
        cursor=work.cursor,
        slices=[
            pb.SliceProgress(
                slice=each.fragment,
                held=each.number,
                since=pb.Counters(steps=each.steps, tokens=each.tokens),
                digest=each.held.digest[:DIGEST_DIGITS],
            )
            for each in state.of(shard)
            if each.held is not None and not each.disowned
        ],
        tick_seen=state.tick_seen,
        epochs_seen=state.epochs_seen,
        publish_seconds=work.publish_seconds,
        training=state.started,
        waiting=state.waits,
        finished=state.finished,
        busy_share=work.busy_share,
        blocked_seconds=work.blocked_seconds,
    )


def leave(state: State, reason: str) -> list[Effect]:
    """The training process ends: say so, with what is in no commit yet (rule 13)."""
    if state.leaving:
        return []
    state.leaving = True
    if state.observer:
        return []
    pending = {f"{shard}/{p}": each.tokens for (shard, p), each in state.slices.items()}
    record = {"event": "end", "reason": reason, "tokens": state.work.tokens, "pending": pending}
    return [Record(record), *state.to_all(pb.ToShard(leave=pb.Leave(reason=reason)))]
