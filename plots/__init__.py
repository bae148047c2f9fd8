"""Figures of runs: style and one module per figure, each `plot(run) -> Figure`, reading stored metrics only.

What: `style` (shared look), `stored` (what a run stored), `run_overview`, `adaptation`, `comparison`, `turnaround`.
Why: a figure must be rebuildable from what a run stored.
Stays out: measuring, aggregating (`swjoin.spark.aggregate`).
"""
