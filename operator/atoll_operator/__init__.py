"""The operator: a manifest becomes a running job, in a cluster or on this machine.

    cli/          the command `atoll`, a module for each verb
    client/       jobs of a cluster from Python, for users
    __main__.py   the process `atoll-operator`
    api/          what a job is: fields, defaults, rules, status, conditions; decides, does nothing
    authority/    the authority of a job, and the certificates that it issues
    sizing/       what a job needs of networks and machines, by the formulas of docs/sizing.md
    local/        the executor that starts processes on this machine
    kube/         the executor that makes objects in a Kubernetes cluster

The executors do not import each other; nothing here imports torch, the syncer or the worker.
"""
