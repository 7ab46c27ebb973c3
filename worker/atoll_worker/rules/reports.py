"""What the shards are told of this learner: after every step, every 2 s, and at the end (rule 7).

A report is the whole truth of one moment, not a change, so a shard loses nothing if it gets only
the newest: the transport replaces an unsent report by a newer one. Reports are also sent when no
boundary comes, so that a shard can tell a learner whose training thread is stuck (it reports, but
its steps do not grow) from one that is gone.

`t_m` on the wire is the learner's *position*: the tick at which it entered the schedule, plus one
for each step since. An observer reports nothing, so no shard waits for it or counts it.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import DIGEST_DIGITS
from atoll_worker.rules.effects import Effect, Record, SendMessage
from atoll_worker.rules.state import State


def report(state: State) -> list[Effect]:
    """The newest report, to every shard that has welcomed this learner."""
    if state.observer or state.leaving:
        return []
    return [
        SendMessage(shard, pb.ToShard(report=report_to(state, shard)))
        for shard, known in enumerate(state.shards)
        if known.welcomed
    ]


def report_to(state: State, shard: int) -> pb.Report:
    """The report as one shard gets it: with its own slices only."""
    progress = state.progress
    return pb.Report(
        t_m=progress.position,
        step_seconds=progress.step_seconds.or_else(0.0),
        loss=progress.loss,
        tokens=progress.tokens,
        late=progress.late // len(state.slices),
        cursor=progress.cursor,
        slices=[
            pb.SliceProgress(
                slice=each.fragment,
                held=each.number,
                since=pb.Counters(steps=each.steps, tokens=each.tokens),
                digest=each.held.digest[:DIGEST_DIGITS],
            )
            for each in state.of(shard)
            if each.held is not None and not each.orphaned
        ],
        tick_seen=state.tick_seen,
        epochs_seen=state.epochs_seen,
        publish_seconds=progress.publish_seconds.or_else(0.0),
        training=state.started,
        waiting=state.awaits_version,
        finished=state.finished,
        busy_share=progress.busy_share,
        blocked_seconds=progress.blocked_seconds,
        trouble=state.trouble,
    )


def leave(state: State, reason: str) -> list[Effect]:
    """The training process ends: tell the shards, and record what is in no commit yet (rule 13)."""
    if state.leaving:
        return []
    state.leaving = True
    if state.observer:
        return []
    pending = {f"{shard}/{p}": each.tokens for (shard, p), each in state.slices.items()}
    tokens = state.progress.tokens
    record = {"event": "end", "reason": reason, "tokens": tokens, "pending": pending}
    return [Record(record), *state.to_all(pb.ToShard(leave=pb.Leave(reason=reason)))]
