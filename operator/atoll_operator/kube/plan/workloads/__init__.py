"""The objects that a job owns, as they are asked for.

children     all of them, from a situation
configs      accounts and ConfigMaps of a job's pods
budgets      how many pods a drain may evict at a time
exposure     how other clusters reach the shards
rendering    which pod templates stay as they were rendered, and until when
hosts        the pod template of a learner of several hosts
pods         the pod templates of shards, learners and evaluators
overrides    what a region changes in its learners' template
"""
