"""Mutated inputs at every door: messages, checkpoints, YAML, Parquet, CSV and Arrow IPC files (docs/reliability.md)."""
