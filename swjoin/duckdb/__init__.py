"""DuckDB: results verified and metrics aggregated on one machine, without Java."""
