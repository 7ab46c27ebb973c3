"""What the shards are told of this learner: after every step, every 2 s, and at the end (rule 7).

Reports without a boundary let a shard tell a learner whose training thread is stuck from one that
is gone. An observer reports nothing, so no shard waits for it or counts it.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import DIGEST_DIGITS
from atoll_worker.rules.effects import Effect, SendMessage, TelemetryRecord
from atoll_worker.rules.learner_state import LearnerState


def report(state: LearnerState) -> list[Effect]:
    if state.configure.observer or state.leaving:
        return []
    reports = {shard: pb.ToShard(report=report_to(state, shard)) for shard in state.welcomed}
    return [SendMessage(shard, report) for shard, report in reports.items()]


def report_to(state: LearnerState, shard: int) -> pb.Report:
    """With its own slices only."""
    progress = state.progress
    return pb.Report(
        t_m=progress.position,
        step_seconds=progress.step_seconds.or_else(0.0),
        loss=progress.loss,
        tokens=progress.tokens,
        late=state.late,
        settled=pb.Settled(overlap=state.shards[shard].overlap, late=state.shards[shard].late),
        cursor=progress.cursor,
        slices=[
            pb.SliceProgress(
                slice=each.fragment,
                held=each.number,
                since=pb.Counters(steps=each.steps, tokens=each.tokens),
                digest=each.held.digest[:DIGEST_DIGITS],
                handed_over=each.awaited_from is not None,
            )
            for each in state.of(shard)
            if each.held is not None and not each.orphaned
        ],
        tick_seen=state.tick_seen,
        reached=max(0, state.clock.reached),
        epochs_seen=state.epochs_seen,
        publish_seconds=progress.publish_seconds.or_else(0.0),
        training=state.started,
        waiting=state.awaits_version,
        finished=state.finished,
        busy_share=progress.busy_share,
        blocked_seconds=progress.blocked_seconds,
        trouble=state.trouble,
    )


def leave(state: LearnerState, reason: str) -> list[Effect]:
    """Tell the shards, and record what is in no commit yet (rule 13)."""
    if state.leaving:
        return []
    state.leaving = True
    if state.configure.observer:
        return []
    pending = {f"{shard}/{p}": each.tokens for (shard, p), each in state.slices.items()}
    tokens = state.progress.tokens
    record = {"event": "end", "reason": reason, "tokens": tokens, "pending": pending}
    message = pb.ToShard(leave=pb.Leave(reason=reason))
    return [TelemetryRecord(record), *(SendMessage(shard, message) for shard in state.welcomed)]
