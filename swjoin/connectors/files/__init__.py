"""Parquet, CSV and Arrow IPC files: sources, result files, late rows, and the files of a run."""
