"""What a person asks of a cluster, with their own kubeconfig and rights, as kubectl does.

No part of the operator's process, which has a service account and watches. Here belongs what the
commands need of a cluster, and `JobClient` for programs; how it is shown belongs in `cli`.

    job_client   JobClient: create, get, list, wait_for, suspend, resume, delete
    shards       where a job's shards are, for `atoll export` and `top`
    credentials  a region's certificates, for `atoll credentials`
    pod_logs     the logs of a job's pods
    reach        the cluster of a context, and its refusals in words
"""

from atoll_operator.client.job_client import (
    FailedError,
    JobClient,
    NotFoundError,
    TrainingJob,
    WaitTimeoutError,
)

__all__ = ["FailedError", "JobClient", "NotFoundError", "TrainingJob", "WaitTimeoutError"]
