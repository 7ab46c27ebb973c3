"""Local mode: the executor that runs a job as processes on this machine (`atoll run`).

It may import `atoll_operator.api` and `atoll_protos`, never `atoll_operator.kube`. gRPC, matplotlib
and rich are imported only where a run needs them.

    atoll_run.py     one run, from a checked job to its summary: its passes, learners elsewhere
    chaos.py         faults of a plan
    supervisor.py    starts processes, and starts them again when they end, as the job stands
    log_keeper.py    the program that writes the log of a process
    child.py         one process: how it ended, and when it is given up
    startable.py     whether a process can start, free ports, and what is reported of processes
    show/            the live table, `atoll top`, curves, pictures, the summary
    poller.py        asks the shards
    last_status.py   the last status of a run, in its folder
    local_status.py  their answers become the status and its conditions; machines
    process_plan.py  the processes of a job in place of pods
    gpus.py          their GPUs
    run_manifest.py  the manifest of a script, and edits of it
    run_folder.py    its lock, its privacy, sockets and logs
    run_files.py     the files of a run folder
"""
