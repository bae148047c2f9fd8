"""Figures of runs and of sweeps: style and one module per figure or kind of figure, reading stored metrics and tables only.

What: `style` (shared look), `stored` (data of runs), `run_overview`, `adaptation`, `comparison`, `turnaround`; of sweeps
`sweep_tables`, `experiments`, `sweep_figures`, `knee`, `claims` (verdicts on the paper), `reproduction` (its page).
Why: a figure must be reproducible from stored data.
Stays out: measuring, aggregating (`swjoin.sweeps.run_tables`).
"""
