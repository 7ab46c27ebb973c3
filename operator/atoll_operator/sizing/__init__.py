"""What a job needs of links and machines, by the formulas of docs/sizing.md; pure.

May import the API alone. Its files:

    needs.py      all figures of `atoll plan` together
    advice.py     which limit is the tightest, and which setting would help most
    prices.py     what bytes cost that leave a region
    traffic.py    rates over the border of each region, and what learners wait for
    machines.py   memory, processors and disks of a learner and of a shard, requests to a bucket
    goodput.py    what failures cost, by simulated jobs
    expected.py   warnings by what the manifest itself expects

The symbols are N parameters that travel, M learners, t seconds of a step, P fragments, H period,
tau overlap and S shards. E = N / H parameters are due in each tick. A fragment of N / P goes up
from each learner and down to it every H / P ticks, and has tau steps for its way.
"""
