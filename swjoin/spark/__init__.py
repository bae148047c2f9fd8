"""Spark around the engine (generate, verify, tables) and the engine inside Spark: `window_join`, `parquet`, `digest`."""

from typing import Any

__all__ = ["digest", "parquet", "window_join"]


def __getattr__(name: str) -> Any:
    # Lazily: commands that need neither should not load the kernels.
    if name == "window_join":
        from swjoin.spark.dataframe_join import window_join

        return window_join
    if name == "digest":
        from swjoin.spark.row_digest import digest

        return digest
    if name == "parquet":
        from swjoin.spark.parquet_files import parquet

        return parquet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
