"""Local mode: the executor that runs a job as processes on this machine (`atoll run`).

What belongs here: starting and watching processes, asking shards for their status over the
loopback interface, showing it, and the files of the run folder that are not a process's own. It
may import `atoll_operator.api` and `atoll_protos`, never `atoll_operator.kube`. gRPC, matplotlib
and rich are imported only where a run needs them.

    run.py          one run, from a checked job to its summary
    supervisor.py   starts processes, and starts them again when they end
    keeper.py       the program that writes the log of a process
    files.py        writes the files of a run folder, when the disk takes them
    commands.py     whether a command can start at all, before anything is started
    ends.py         what the end of a process means, and what people are told
    plan.py         the processes of a job, in place of pods
    gpus.py         which GPUs each of them gets
    processes.py    learners of several processes: the launcher in their command
    manifests.py    the manifest of a script, and the one that a run folder keeps
    shards.py       asks the shards for their status over gRPC
    children.py     what the status says of processes that have ended, or start
    progress.py     their answers become the status and its conditions
    folder.py       who runs what is in a run folder, and its last status
    logs.py         the logs of a run folder, through restarts
    told.py         a status in a few lines for a person
    rows.py         every learner and shard in a row, for `atoll top`
    live.py         the live table, lines of text, lines of JSON
    summary.py      summary.json: what became of every token
    curves.py       the curves of a run, from the lines that its processes write
    trackers.py     TensorBoard's files, and Weights & Biases
    recorder.py     draws the curves while the run continues
    plots.py        loss.png and goodput.png
"""
