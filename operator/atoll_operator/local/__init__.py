"""Local mode: the executor that runs a job as processes on this machine (`atoll run`).

It may import `atoll_operator.api` and `atoll_protos`, never `atoll_operator.kube`. gRPC, matplotlib
and rich are imported only where a run needs them.

    atoll_run.py   one run, from a checked job to its summary
    passes.py      what it does every half second
    elsewhere.py   learners on other machines, of which `atoll run` has none
    chaos/         faults of a plan, and what followed them
    supervision/   starts processes, and starts them again when they end
    show/          the live table, `atoll top`, curves, pictures, the summary
    progress/      the answers of the shards become the status and its conditions
    planning/      the processes of a job in place of pods, their GPUs, the manifest of a script
    folder/        the files of a run folder
"""
