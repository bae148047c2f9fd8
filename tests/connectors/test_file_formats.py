"""Files of every format have the same answer; errors name the file and the line, and are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.connectors.files.formats import read_batches, read_schema
from swjoin.core.errors import UserError
from swjoin.duckdb.verify import verify
from tests.support.in_process import run

ROWS = 200
TABLE = pa.table(
    {
        "key": [i * 7 % 5 for i in range(ROWS)],
        "at": pa.array([i * 1_500_000 for i in range(ROWS)], pa.timestamp("us", "UTC")),
        "name": [f"tab\t{i}, line\n" if i % 3 else None for i in range(ROWS)],
    }
)
TIMES: dict[str, Any] = {"on": "key", "left_time": "at", "right_time": "at", "within": "20s"}
JSON = ["jsonl", "ndjson.gz", "json.zst"]
TEXT = [f"{kind}{packed}" for kind in ("csv", "tsv") for packed in ("", ".gz", ".bz2", ".zst", ".lz4")]


def write(path: Path, table: pa.Table = TABLE) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".orc":
        orc.write_table(table, path, stripe_size=1 << 10, batch_size=64)
    elif ".csv" not in path.name and ".tsv" not in path.name:
        with pa.output_stream(str(path)) as file:
            for row in table.to_pylist():
                file.write(
                    json.dumps({name: value for name, value in row.items() if value is not None}, default=str).encode() + b"\n"
                )
    else:
        with pa.output_stream(str(path)) as file:
            csv.write_csv(table, file, csv.WriteOptions(delimiter="\t" if ".tsv" in path.name else ","))
    return path


def config(path: Path, **sections: Any) -> dict[str, Any]:
    sides = {"path": str(path), "key": "key", "time": "at"}
    return {"join": {"within": "20s"}, "left": sides, "right": sides, "sink": {"kind": "parquet", "ids": True}, **sections}


@pytest.mark.parametrize("kind", [*TEXT, *JSON, "orc"])
def test_the_answer_is_that_of_parquet(kind: str, tmp_path: Path) -> None:
    left, right = write(tmp_path / f"left.{kind}"), write(tmp_path / "right.parquet")
    answer = swjoin.join(right, right, **TIMES)
    found = swjoin.join(left, right, **TIMES)
    assert found.num_rows > ROWS
    assert found.cast(answer.schema).equals(answer)
    (tmp_path / "c.yaml").write_text(json.dumps(config(left)))
    run(tmp_path / "c.yaml", tmp_path)
    if kind == "orc":
        with pytest.raises(UserError, match=r"left.orc: DuckDB does not read ORC; swjoin verify --engine spark may read it$"):
            verify(tmp_path / "run")
        return
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert result.count == answer.num_rows


def test_tsv_and_csv_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "a.csv", TABLE.slice(0, 70))
    write(tmp_path / "parts" / "b.tsv.zst", TABLE.slice(70, 0))
    write(tmp_path / "parts" / "c.tsv.gz", TABLE.slice(70))
    whole = write(tmp_path / "whole.parquet")
    assert swjoin.count(tmp_path / "parts", whole, **TIMES) == swjoin.count(whole, whole, **TIMES)


def test_an_empty_file_of_orc(tmp_path: Path) -> None:
    empty, whole = write(tmp_path / "empty.orc", TABLE.slice(0, 0)), write(tmp_path / "whole.orc")
    assert swjoin.count(empty, whole, **TIMES).count == 0
    assert swjoin.count([empty, whole], whole, **TIMES) == swjoin.count(whole, whole, **TIMES)


@pytest.mark.parametrize("kind", ["tsv", "tsv.gz", "csv.zst", "csv.lz4"])
def test_errors_of_text_name_the_line(kind: str, tmp_path: Path) -> None:
    delimiter = "\t" if "tsv" in kind else ","
    lines = ["key,at,note", "1,2026-01-01 00:00:00Z,", '2,2026-01-01 00:00:01Z,"two\nlines"', "3,2026-01-01 00:00:02,x"]
    path = tmp_path / f"a.{kind}"
    with pa.output_stream(str(path)) as file:
        file.write("\n".join(lines).replace(",", delimiter).encode() + b"\n")
    with pytest.raises(UserError) as caught:
        swjoin.count(path, path, **TIMES)
    assert str(caught.value).startswith(f"{path}, line 5: column at: '2026-01-01 00:00:02' has no time zone")


@pytest.mark.parametrize("kind", ["orc", "csv.zst", "tsv.lz4", "csv.gz", "json.zst"])
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    whole = write(tmp_path / f"whole.{kind}").read_bytes()
    other = write(tmp_path / "other.parquet")
    for size in (0, 1, 20, len(whole) - 30):
        path = tmp_path / f"damaged.{kind}"
        path.write_bytes(whole[:size])
        with pytest.raises(UserError) as caught:
            swjoin.count(path, other, **TIMES)
        assert str(caught.value).startswith(f"{path}")
        assert "\n" not in str(caught.value)


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2026-01-01T10:00:00", pa.timestamp("us")),
        ("2026-01-01 10:00:00.123456", pa.timestamp("us")),
        ("2026-01-01T10:00:00.123456789", pa.timestamp("ns")),
        ("2026-01-01T10:00:00Z", pa.timestamp("us", "UTC")),
        ("2026-01-01T10:00:00.5+02:00", pa.timestamp("us", "UTC")),
        ("noon", pa.string()),
    ],
)
def test_times_of_json_lines_keep_their_zone(text: str, kind: pa.DataType, tmp_path: Path) -> None:
    """Arrow's own reader takes the second and the third for text, and drops the zone of the fourth."""
    path = lines(tmp_path / "a.jsonl", {"t": text, "in": {"t": text}}, {"t": None})
    schema = read_schema(path)
    assert (schema.field("t").type, schema.field("in").type) == (kind, pa.struct([("t", pa.string())]))
    (batch,) = read_batches(path, schema, ["t", "in"], 100)
    assert batch.column("t").to_pylist() == [pa.scalar(text).cast(kind).as_py(), None]
    assert batch.column("in").to_pylist() == [{"t": text}, None]


def test_json_lines_that_do_not_fit(tmp_path: Path) -> None:
    first = {"key": 1, "at": "2026-01-01T00:00:00Z"}
    whole = lines(tmp_path / "whole.jsonl", first)
    for row, said in (
        (
            {"key": 1, "at": "2026-01-01T00:00:01"},
            "row 1 (counting from 0): column at: '2026-01-01T00:00:01' is no time with a",
        ),
        (
            {"key": "x", "at": "2026-01-01T00:00:01Z"},
            "cannot be read as JSON lines: JSON parse error: Column(/key) changed from",
        ),
        ([1], "cannot be read as JSON lines: "),
    ):
        folder = tmp_path / "parts"
        folder.mkdir(exist_ok=True)
        lines(folder / "a.jsonl", first)
        path = lines(folder / "b.jsonl", first, row)
        with pytest.raises(UserError) as caught:
            swjoin.count(folder, whole, **TIMES)
        assert str(caught.value).startswith(str(path))
        assert said in str(caught.value)
    empty = lines(tmp_path / "empty.jsonl")
    with pytest.raises(UserError, match=r"empty.jsonl: holds no rows, and nothing else names its columns; leave it out$"):
        swjoin.count(empty, whole, **TIMES)
    assert swjoin.count([empty, whole], whole, **TIMES) == swjoin.count(whole, whole, **TIMES)
    other = lines(tmp_path / "other.jsonl", {"more": 1, "at": "2026-01-01T00:00:01Z"})
    assert swjoin.count([whole, other], whole, **TIMES).ledger.left.null_key == 1, "a field may be missing in any row"
