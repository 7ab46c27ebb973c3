"""How the operator connects to the API server."""

from kubernetes.aio import client, config
from kubernetes.aio.dynamic import DynamicClient

from atoll_operator.kube.edges.api import Api, Count
from atoll_operator.kube.edges.fence import Fence
from atoll_operator.kube.edges.limiter import Limiter
from atoll_operator.kube.names import COMPONENT


async def connect(
    limiter: Limiter,
    kubeconfig: str | None = None,
    *,
    fence: Fence | None = None,
    counts: Count = lambda verb, status: None,
) -> Api:
    """Connect with the pod's service account; outside of a cluster with this file or KUBECONFIG."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(kubeconfig, client_configuration=settings)
    settings.connection_pool_maxsize = 0  # no limit: each watch holds a connection
    connection = client.ApiClient(settings)
    connection.user_agent = COMPONENT  # in the API server's audit log and metrics
    return Api(
        client=connection,
        dynamic=DynamicClient(connection),
        limiter=limiter,
        fence=fence,
        counts=counts,
    )
