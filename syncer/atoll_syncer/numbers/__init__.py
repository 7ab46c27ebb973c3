"""The tensors of a shard: what arrives, what is merged, what is published.

May import numpy, storage and model, never the rules, the driver or gRPC. Nothing here decides
whether an offer counts or when a round closes; the rules do, and name the offers in effects.

    workers  threads that compute a slice together, block by block
    merge    weighted mean and radial-directional average; the outer optimizer
    commit   what arrives, what is an outlier, and the arithmetic of one commit
    values   all slices of a shard: masters, bases, staged offers, versions in the making
"""
