"""Four ranks that move the values of models between them, and compare every bit.

    python exchange_script.py FOLDER

The ranks are forks of this process, so that torch is imported once. One line of FOLDER/RANK.jsonl
says of every check how it went on that rank: its name, and a traceback or nothing.
"""

import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from local.forked import met, script_of
from local.ranks import models
from local.ranks.checks.agreement import (
    check_a_partial_sum,
    check_one_name_twice,
    check_states,
    check_what_is_said_together,
)
from local.ranks.checks.frozen import (
    check_what_is_frozen_in_a_model_that_is_cut,
    check_what_is_frozen_in_a_pipeline,
)
from local.ranks.checks.mistakes import (
    check_mistakes_that_are_seen_at_once,
    check_mistakes_that_are_seen_late,
)
from local.ranks.checks.training import check_what_is_unfrozen_later
from local.ranks.checks.values import (
    both_ways,
    check_both_ways,
    check_what_is_written_after_an_evaluation,
)
from local.ranks.models import RANKS


def bfloat16() -> models.Mixed:
    """Matrices in bf16, norms in f32."""
    return models.Mixed(torch.bfloat16)


CHECKS: Mapping[str, Callable[[], None]] = {
    "DDP on 2 ranks": both_ways(lambda: models.replicated(2)),
    "DDP on 4 ranks": both_ways(lambda: models.replicated(4)),
    "FSDP2 on 2 ranks": both_ways(lambda: models.fully_sharded(2)),
    "FSDP2 on 3 ranks": both_ways(lambda: models.fully_sharded(3)),
    "FSDP2 on 4 ranks": both_ways(lambda: models.fully_sharded(4)),
    "FSDP2 on 3 ranks, blended": lambda: check_both_ways(models.fully_sharded(3), 0.5),
    "FSDP2 in bf16": both_ways(lambda: models.fully_sharded(2, bfloat16)),
    "FSDP2 of a tied embedding": both_ways(lambda: models.fully_sharded(2, models.Tied)),
    "FSDP2 by columns": both_ways(models.sharded_by_columns),
    "HSDP on 2 x 2 ranks": both_ways(models.hybrid),
    "TP on 2 ranks": both_ways(lambda: models.tensor_parallel(8)),
    "TP on 2 ranks, uneven": both_ways(lambda: models.tensor_parallel(7)),
    "FSDP2 x TP on 2 x 2 ranks": both_ways(lambda: models.sharded_and_tensor_parallel(8)),
    "FSDP2 x TP on 2 x 2 ranks, uneven": both_ways(lambda: models.sharded_and_tensor_parallel(6)),
    "two stages of FSDP2, one in two parts": both_ways(models.pipeline),
    "a frozen stage at the head": both_ways(lambda: models.frozen_stage(0)),
    "a frozen stage behind the head": both_ways(lambda: models.frozen_stage(1)),
    "experts, each whole": both_ways(lambda: models.expert_parallel(0)),
    "experts, by their rows": both_ways(lambda: models.expert_parallel(1)),
    "experts, by their columns": both_ways(lambda: models.expert_parallel(2)),
    "after an evaluation": check_what_is_written_after_an_evaluation,
    "what is frozen in a model that is cut": check_what_is_frozen_in_a_model_that_is_cut,
    "what is frozen in a pipeline": check_what_is_frozen_in_a_pipeline,
    "mistakes that are seen at once": check_mistakes_that_are_seen_at_once,
    "mistakes that are seen late leave nothing behind": check_mistakes_that_are_seen_late,
    "a partial sum is refused": check_a_partial_sum,
    "one name twice is refused": check_one_name_twice,
    "what is unfrozen later is named": check_what_is_unfrozen_later,
    "data states of ranks": check_states,
    "what is said together": check_what_is_said_together,
}


def be(rank: int, folder: Path) -> None:
    with met(folder, rank, RANKS), (folder / f"{rank}.jsonl").open("w") as report:
        for name, check in CHECKS.items():
            trouble = ""
            try:
                check()
            except Exception:
                trouble = traceback.format_exc()
            report.write(json.dumps([name, trouble]) + "\n")
            report.flush()
            dist.barrier()


if __name__ == "__main__":
    script_of(RANKS, be)
