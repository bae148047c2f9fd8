"""Figures of runs: style and one module per figure, each `plot(run) -> Figure`, reading stored metrics only.

What: `style` (shared look), `run_overview`, `turnaround`.
Why: a figure must be rebuildable from what a run stored.
Stays out: measuring, aggregating (`swjoin.spark.aggregate`).
"""
