"""Checkpoints of a run: what a run leaves for other programs and runs.

May import storage and model; never the rules or the driver.

    copies     parts of checkpoints: what is in them, which are whole, which go, where they lie
    restoring  reads a checkpoint, however its model is cut; writes its model beside it
"""
