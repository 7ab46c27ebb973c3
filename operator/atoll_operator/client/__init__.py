"""What a person asks of a cluster, with their own kubeconfig and rights, as kubectl does.

No part of the operator's process, which has a service account and watches. Here belongs what the
commands need of a cluster; how it is shown belongs in `cli`.

    job_client   a job with its status, for `atoll export` and `checkpoint`
    shards       where a job's shards are, for `atoll export` and `top`
    credentials  a region's certificates, for `atoll credentials`
    reach        the cluster of a context, and its refusals in words
"""

from atoll_operator.client.job_client import JobClient, TrainingJob

__all__ = ["JobClient", "TrainingJob"]
