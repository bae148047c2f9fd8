"""Diagnostics: the checks of `swjoin doctor`, and the memory of a rank at start-up.

Stays out: load of a host during a run (`monitor.host_load`).
"""
