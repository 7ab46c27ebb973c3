"""What a shard sees, as the Status call tells it."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.roster import Slot
from atoll_syncer.shard import Shard


def status(shard: Shard, now: float) -> pb.StatusReply:
    """The shard's state; bytes are the edge's to fill in."""
    rounds = [each for each in shard.rounds.values() if each.closed_at is None]
    state, reason = _state(shard)
    return pb.StatusReply(
        run=shard.history.run,
        shard=shard.number,
        epoch=shard.history.epoch,
        state=state,
        reason=reason,
        tick=shard.clock.tick,
        steps=shard.run_file.steps or 0,
        slots=[_slot(shard, slot, now) for _, slot in sorted(shard.slots.items())],
        commits=shard.history.commits,
        quorum=shard.sync.quorum,
        live=len(shard.training(now)),
        grace_seconds=max((each.grace_seconds for each in rounds), default=0.0),
        registrar=shard.registrar,
        ticks_per_second=shard.ticks_per_second,
        evaluation=shard.evaluation,
        final_shards=[str(number) for number in sorted(shard.history.finals)],
        late=shard.late,
        refused_zombies=shard.refused_zombies,
    )


def _state(shard: Shard) -> tuple[str, str]:
    if shard.failed:
        return "Failed", shard.failed
    if shard.complete:
        return "Complete", ""
    if shard.history.ended:
        return "Final", ""
    if not shard.history.run:
        return "Starting", "no run has started yet"
    if not shard.history.heads:
        return "Seeding", "waits for a learner's first values"
    return ("Serving", "") if shard.serving else ("Starting", "waits for the registrar")


def _slot(shard: Shard, slot: Slot, now: float) -> pb.SlotStatus:
    taken = shard.history.taken.get(slot.name)
    owned = shard.history.owned.get(slot.name)
    report = slot.report
    return pb.SlotStatus(
        slot=slot.name,
        state=slot.state(now),
        incarnation=taken.incarnation if taken else 0,
        uid=taken.uid if taken else "",
        instance=taken.instance if taken else "",
        t_m=report.t_m,
        step_seconds=report.step_seconds,
        loss=report.loss,
        tokens=slot.tokens_before + report.tokens,
        seconds_since_report=now - slot.reported_at,
        seconds_since_adoption=now - slot.adopted_at,
        too_slow=shard.is_too_slow(slot),
        cursor=report.cursor,
        busy_share=report.busy_share,
        blocked_seconds=report.blocked_seconds,
        owner_uid=owned.uid if owned else "",
        owner_word=owned.word if owned else 0,
        reason=slot.left,
        finished=report.finished,
    )
