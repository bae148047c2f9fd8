"""Columns and types that the user declares for files of text.

What: `declared_types(text)`, `refuse_unknown(texts, columns)`.
Why: text does not say what `007` is, nor a file without rows anything.
Stays out: reading (`connectors.files.csv_format`, `connectors.files.json_format`).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swjoin.config.connectors import TextConfig
from swjoin.connectors.files.inputs import file_format
from swjoin.connectors.schema import parse_schema
from swjoin.core.errors import UserError, one_line, setting
from swjoin.core.units import named_path

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = ("CSV", "JSON lines")  # formats that it is for
_YAML = (".yaml", ".yml", ".json")


def declared_types(text: TextConfig) -> dict[str, pa.DataType]:
    """Types by column; `types` comes before `schema`. UserError for what is no type, and for a schema file that has none."""
    found = {} if text.schema is None else _of_file(named_path(text.schema, "csv.schema"))
    if text.types is not None:
        found |= {field.name: field.type for field in parse_schema(text.types, "csv")}
    return found


def _of_file(path: Path) -> dict[str, pa.DataType]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import yaml

    kind = file_format(path)
    if path.suffix.lower() not in _YAML and kind not in ("Parquet", "Arrow IPC"):
        raise UserError(f"{path}: is no schema: .yaml, .json, .parquet and .arrow files have one")
    try:
        if kind == "Parquet":
            schema = pq.read_schema(path)
        elif kind == "Arrow IPC":
            with path.open("rb") as file:
                in_file = file.read(6) == b"ARROW1"
            schema = (pa.ipc.open_file if in_file else pa.ipc.open_stream)(str(path)).schema
        else:
            plain = yaml.safe_load(path.read_bytes())
            if not isinstance(plain, dict) or not plain or not all(isinstance(v, str) for pair in plain.items() for v in pair):
                raise UserError(f"{path}: is no mapping of columns to types, such as user: string")
            schema = parse_schema(", ".join(f"{column}: {kind}" for column, kind in plain.items()), str(path))
    except (pa.ArrowException, OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: cannot be read as a schema: {one_line(error)}") from None
    return {field.name: field.type for field in schema}


def refuse_unknown(texts: Sequence[TextConfig | None], columns: Sequence[list[str] | None]) -> None:
    """UserError when what is said of text is for no input, or for a column that is in none of them.

    columns: of each input; None: it is no file of text.
    """
    given = [(text, names) for text, names in zip(texts, columns, strict=True) if text is not None]
    there = [name for _, names in given for name in names or ()]
    if given and all(names is None for _, names in given):
        raise UserError((setting("csv"), " is for CSV, TSV and JSON lines files; no input is one"))
    for text, _ in given:
        for field in () if text.types is None else parse_schema(text.types, "csv"):
            if field.name not in there:
                near = difflib.get_close_matches(field.name, there, 1)
                hint = f"did you mean {near[0]}?" if near else f"its columns are {', '.join(there)}"
                raise UserError((setting("csv"), f": types: no column is named {field.name}; {hint}"))
