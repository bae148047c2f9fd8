"""Examples on real data, each runnable: `python -m swjoin.examples.NAME`."""
