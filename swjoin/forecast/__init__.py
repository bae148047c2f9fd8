"""Forecasts: costs, memory, network, capacity, and a discrete-event model of a run.

Stays out: running anything but calibration.
"""
