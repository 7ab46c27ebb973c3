"""What a person asks of a cluster, with their own kubeconfig and rights, as kubectl does.

No part of the operator's process, which has a service account and watches. Here belongs what the
commands need of a cluster; how it is shown belongs in `cli`.

    job_client   jobs, and the pods from which their shards are reached
    credentials  a region's certificates, for `atoll credentials`
"""

from atoll_operator.client.job_client import JobClient

__all__ = ["JobClient"]
