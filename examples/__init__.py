"""Examples on real data, each runnable: `python -m examples.NAME`."""
