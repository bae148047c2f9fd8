"""Parquet, CSV and Arrow IPC files: reading streams, writing results, late rows, and the files of a run."""
