"""Monitoring: status, metrics, hot keys, host load, process memory, and whether a run keeps up.

Stays out: anything that changes a run.
"""
