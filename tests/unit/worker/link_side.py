"""A small job as a training process describes it to its transport."""

import os

from atoll_protos.layout import TensorSpec, build_layout
from atoll_protos.run import Region, RunFile, Sync
from atoll_worker.link.messages import Configure

TENSORS = tuple(
    TensorSpec(name=name, shape=(3, 4), dtype="float32", merge="rda") for name in ("a", "b")
)
RUN_FILE = RunFile(
    job="tiny",
    regions=(Region(name="here", learners=1),),
    steps=10,
    sync=Sync(fragments=2, period=4),
)
CONFIGURE = Configure(
    run_file=RUN_FILE.to_json(),
    tensors=TENSORS,
    layout_digest=build_layout(TENSORS, 2, 1).digest,
    slot="here-0",
    uid="u",
    instance="u-1",
    endpoints=("localhost:1",),
    telemetry_folder="",
    observer=False,
    training_pid=os.getpid(),
)
