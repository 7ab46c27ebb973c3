"""Real Kubernetes clusters for tests and for trying Atoll: `python tests/cluster up`.

Package `cluster.lab` beside this file brings up etcd, a control plane and nodes with real kubelets
and containerds, cuts nodes off, heals them and removes it all. Of Atoll it knows no more than how
to make its images (`lab/roles.py`); what tests Atoll on a cluster are the test files beside it.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from cluster.lab.cli import main  # noqa: E402  the path above comes first

if __name__ == "__main__":
    main()
