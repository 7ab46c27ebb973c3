"""What the status of a job on a cluster says, and when it is written."""

from atoll_operator.kube.plan import status
from unit.kube.cluster_values import learner, shard


def test_ready_pods_are_counted_by_the_regions_that_are_served() -> None:
    pods = [
        learner("us-east-0", "n"),
        learner("us-east-1", "n", ready=False),
        learner("eu-west-0", "m", terminating=True),
        learner("ap-south-0", "o"),
        shard(0, "n"),
    ]
    assert status.ready_by_region(pods, ("us-east", "eu-west")) == {"us-east": 1, "eu-west": 0}
