"""The command `atoll`, which is `kubectl atoll` too: one module for each verb.

A module imports only what reading its arguments needs, and a verb the rest when it runs: `atoll
--help`, `validate` and `status DIR` start without gRPC, Kubernetes' client, matplotlib or rich.

    app.py        the verbs under their names, --version, exit codes of errors
    validate.py   checks a manifest without a cluster
    run.py        trains on this machine
    serve.py      the shards of a job, for learners on other machines
    join.py       learners of this machine for such a job
    tokens.py     who may bring a machine into it, and who has
    plan.py       what a job needs of networks and machines
    views.py      status, top and logs: how a run or a job stands
    export.py     the model of a run as it is now
    credentials.py  the Secret of a region in another cluster, or its files for a machine
    store.py      whether a bucket does what shards need; recorded merges computed again
    lifecycle.py  edits, suspends, resumes and stops a run, and asks for a checkpoint
    detached.py        a command in the background, started and ended
    run_or_job.py      whether a name is that of a run folder or of a job
"""

from atoll_operator.cli.app import app, complete, main
from atoll_operator.cli.validate import read_job

__all__ = ["app", "complete", "main", "read_job"]
