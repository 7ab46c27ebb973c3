"""The command `atoll`, which is `kubectl atoll` too: one module for each verb.

A module imports only what reading its arguments needs, and a verb the rest when it runs: `atoll
--help`, `validate` and `status DIR` start without gRPC, Kubernetes' client, matplotlib or rich.

    app.py        the verbs under their names, --version, exit codes of errors
    validate.py   checks a manifest without a cluster
    run.py        trains on this machine
    serve.py      the shards of a job, for learners on other machines
    join.py       learners of this machine for such a job
    tokens.py     who may bring a machine into it, and who has
    plan/         what a job needs of networks and machines, and what it costs
    status.py     how a run folder or a job in a cluster stands
    top.py        every learner and shard as it is now
    logs.py       what the processes of a run folder or of a job in a cluster have written
    plot.py       the loss curves as a picture
    export.py     the model of a run as it is now
    checkpoint.py  one more checkpoint of a run
    credentials.py  the Secret of a region in another cluster, or its files for a machine
    replay.py     recorded merges computed again, and the first that differs
    store.py      whether a bucket does what the shards of a job need
    chaos.py      a plan of faults in the words of Chaos Mesh
    lifecycle.py  edits, suspends, resumes and stops a run or a job, and deletes a job
    manifest_file.py   a manifest's file becomes a job
    detached.py        a command in the background, started and ended
    run_or_job.py      whether a name is that of a run folder or of a job
    region_values.py   flags that come once for each region, and prices of bytes
    chaos_mesh.py      the Workflow that such a plan is
    template_check.py  what is obviously wrong in a pod template
"""

from atoll_operator.cli.app import app, complete, main
from atoll_operator.cli.manifest_file import read_job

__all__ = ["app", "complete", "main", "read_job"]
