"""Figures of runs and of sweeps: style and one module per figure or kind of figure, reading stored metrics and tables only.

What: `style` (shared look), `stored` (what a run stored), `run_overview`, `adaptation`, `comparison`, `turnaround`;
of sweeps `sweep_tables` (their tables), `experiments`, `sweep_figures`, `claims` (verdicts on the paper), `reproduction` (its
page).
Why: a figure must be rebuildable from what a run stored.
Stays out: measuring, aggregating (`swjoin.spark.aggregate_run`).
"""
