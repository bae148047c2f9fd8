"""Checkpoints: the store, its manifest, the delivery log, and writing and restoring each role's part.

Stays out: when a checkpoint is made (`cluster.master.checkpoint_coordinator`).
"""
