"""The tensors of a shard: what arrives, what is merged, what is published.

May import numpy, storage and model, never the rules, the driver or gRPC. Nothing here decides
whether an offer counts or when a round closes; the rules do, and name the offers in effects.

    workers    threads that compute a slice together, block by block
    merge      weighted mean and radial-directional average of the learners' differences
    outer      the outer optimizer: SGD with Nesterov momentum, in place
    arrivals   transfers that arrived whole: verified, and read block by block
    outliers   finite offers that are far longer than usual
    commit     the arithmetic of one commit: merge, outer step and rounding in one pass
    values     all slices of a shard: masters, bases, staged offers, and versions in the making
    replay     makes the versions of a slice again from its record
"""
