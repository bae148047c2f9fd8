"""Options of reading text: delimiter, missing values, encoding, formats of times, types, a schema file; on every front end."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import swjoin
from swjoin.core.errors import UserError
from swjoin.duckdb.verify import verify
from tests.conftest import ROOT
from tests.support.in_process import run

ROWS = 60
TIMES: dict[str, Any] = {"on": "user", "left_time": "at", "right_time": "at", "within": "20min"}
START = 1_767_222_000  # 2025-12-31 23:00:00


def table(name: str = "km") -> pa.Table:
    """With a missing user and a missing number."""
    at = pa.array([(START + 61 * i) * 1_000_000 for i in range(ROWS)], pa.timestamp("us"))
    user = [None if i == 3 else f"{i % 7:03}" for i in range(ROWS)]
    return pa.table({"user": user, "at": at, name: [None if i == 5 else i / 4 for i in range(ROWS)]})


def write(path: Path, rows: pa.Table, **dialect: str) -> Path:
    said = {"delimiter": ",", "null": "", "time": "%Y-%m-%d %H:%M:%S", "encoding": "utf-8", **dialect}
    delimiter, null, time, encoding = (said[name] for name in ("delimiter", "null", "time", "encoding"))

    def shown(value: Any) -> str:
        return null if value is None else value.strftime(time) if hasattr(value, "strftime") else str(value)

    lines = [delimiter.join(rows.column_names), *(delimiter.join(map(shown, row.values())) for row in rows.to_pylist())]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return path


DIALECTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "delimiter": ({"delimiter": ";"}, {"delimiter": ";"}),
    "tab": ({"delimiter": "\t"}, {"delimiter": "\t"}),
    "nulls": ({"null": "NA"}, {"nulls": ["", "NA"]}),
    "encoding": ({"encoding": "latin-1"}, {"encoding": "latin-1"}),
    "wide encoding": ({"encoding": "utf-16"}, {"encoding": "utf-16"}),
    "times": ({"time": "%d.%m.%Y %H:%M:%S"}, {"times": ["%d.%m.%Y %H:%M:%S"]}),
    "times with a suffix": ({"time": "%Y-%m-%d %H:%M:%S UTC"}, {"times": ["%Y-%m-%d %H:%M:%S UTC"]}),
    "all": (
        {"delimiter": "|", "null": "none", "time": "%m/%d/%Y %H:%M:%S", "encoding": "cp1252"},
        {"delimiter": "|", "nulls": ["none"], "times": ["%Y%m%d", "%m/%d/%Y %H:%M:%S"], "encoding": "cp1252"},
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_answer_is_that_of_parquet(dialect: str, swjoin_command: Any, tmp_path: Path) -> None:
    """In Python, by the command, in a run, and by another engine; `007` stays text by its declared type."""
    written, said = DIALECTS[dialect]
    said = {**said, "types": "user: string"}
    name = "größe" if "encoding" in dialect else "km"
    pq.write_table(table(name), tmp_path / "whole.parquet")
    text, whole = write(tmp_path / "text.csv", table(name), **written), tmp_path / "whole.parquet"
    answer = swjoin.join(whole, whole, **TIMES)
    assert answer.num_rows > ROWS
    found = swjoin.join(text, whole, csv=said, **TIMES)
    assert found.cast(answer.schema).equals(answer)
    assert swjoin.count(text, text, left_csv=said, right_csv=said, **TIMES) == swjoin.proof(answer)
    flat = [(key, v) for key, value in said.items() for v in ([value] if isinstance(value, str) else value)]
    options = [item for key, value in flat for item in ("--csv", f"{key}={value}".replace("\t", "tab"))]
    argv = ["--on", "user", "--left-time", "at", "--right-time", "at", "--within", "20min", *options, "-o", "count"]
    done = swjoin_command("join", text, whole, *argv)
    assert done.code == 0, done.err
    assert swjoin.proof(answer).digest in done.out
    side = {"key": "user", "time": "at"}
    config = {"within": "20min", "left": {"path": str(text), "csv": said, **side}, "right": {"path": str(whole), **side}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**config, "sink": {"kind": "count"}}))
    assert run(tmp_path / "c.yaml", tmp_path)["results"]["digest"] == swjoin.proof(answer).digest
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()


@pytest.fixture
def swjoin_command(swjoin: Any) -> Any:
    return swjoin


@pytest.mark.parametrize("suffix", ["yaml", "json", "parquet", "arrow"])
def test_a_schema_file(suffix: str, tmp_path: Path) -> None:
    """It gives types to text, to columns without values, and to a file without rows."""
    schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us")), ("km", pa.float64())])
    path = tmp_path / f"schema.{suffix}"
    if suffix == "parquet":
        pq.write_table(schema.empty_table(), path)
    elif suffix == "arrow":
        with pa.ipc.new_file(str(path), schema):
            pass
    else:
        plain = {field.name: str(field.type) for field in schema}
        path.write_text(yaml.safe_dump(plain) if suffix == "yaml" else json.dumps(plain))
    text, empty = write(tmp_path / "text.csv", table()), tmp_path / "empty.csv"
    empty.write_text("user,at,km\n")
    found = swjoin.join(text, empty, how="left", csv={"schema": str(path)}, **TIMES)
    assert found.schema.field("right_km").type == pa.float64()
    assert found.num_rows == ROWS
    assert "006" in found["user"].to_pylist()
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"user": "001", "at": "2026-01-01 00:00:00", "km": 1}\n')
    assert swjoin.join(lines, text, csv={"schema": str(path)}, **TIMES).schema.field("left_km").type == pa.float64()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "long delimiter": ({"delimiter": "ab"}, "csv: delimiter 'ab' is not one character that may separate fields"),
    "quote": ({"delimiter": '"'}, "csv: delimiter '\"' is not one character"),
    "encoding": ({"encoding": "latin-99"}, "csv: encoding 'latin-99' is not known"),
    "key": ({"delimeter": ";"}, "csv.delimeter: unknown configuration key; did you mean delimiter?"),
    "type": ({"types": "user: text"}, "csv: schema: column user: 'text' is no Arrow type"),
    "column": ({"types": "usr: string"}, "csv: types: no column is named usr; did you mean user?"),
    "no schema": ({"schema": "none.yaml"}, "none.yaml: cannot be read as a schema"),
    "other file": ({"schema": "a.txt"}, "a.txt: is no schema"),
    "no format": ({"times": ["ISO"]}, "csv: times: a format has fields such as"),
    "no mapping": ("; ", "csv: expected a mapping"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = write(tmp_path / "text.csv", table())
    options, said = BAD[name]
    with pytest.raises(UserError) as caught:
        swjoin.count(text, text, csv=options, **TIMES)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_name_the_option(swjoin_command: Any, tmp_path: Path) -> None:
    semicolons, whole = write(tmp_path / "a.csv", table(), delimiter=";"), tmp_path / "b.parquet"
    pq.write_table(table(), whole)
    argv = ["--on", "user", "--left-time", "at", "--right-time", "at", "--within", "20min", "-o", "count"]
    (line,) = swjoin_command("join", semicolons, whole, *argv).err
    assert line.endswith("a.csv: has one column, 'user;at;km'; if ';' separates its fields, say --csv delimiter=';'")
    late = tmp_path / "late.csv"
    users = (*range(250_000), "abc")
    late.write_text("user,at,km\n" + "".join(f"{user},2026-01-01 00:00:00,1\n" for user in users))
    (line,) = swjoin_command("join", late, late, *argv, "--csv", "types=at: timestamp[us]").err
    assert "declare another with --csv types='COLUMN: string'" in line
    assert "abc" in line
    (line,) = swjoin_command("join", whole, whole, *argv, "--csv", "nulls=NA").err
    assert line == "swjoin: --csv is for CSV, TSV and JSON lines files; no input is one"
    for item, said in (("delimiter", "write KEY=VALUE"), ("=;", "write KEY=VALUE")):
        (line,) = swjoin_command("join", whole, whole, *argv, "--csv", item).err
        assert said in line
    assert "not both" in swjoin_command("join", whole, whole, *argv, "--csv", "nulls=a", "--left-csv", "nulls=b").err[0]


def test_the_examples_of_the_documents(swjoin_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trips.csv").write_text("user;started\n007;01.01.2026 10:00\nNA;01.01.2026 10:01\n")
    (tmp_path / "payments.csv").write_text("user;paid\n7;01.01.2026 10:00\n007;01.01.2026 11:30\n")
    text = (ROOT / "docs" / "sources.md").read_text().partition("### Options of text files")[2].partition("\n## ")[0]
    (example,) = re.findall(r"(?m)^    swjoin (join .*\\\n.*)$", text)
    done = swjoin_command(*shlex.split(example.replace("\\\n", "")))
    assert done.code == 0, done.err
    assert re.search(r"pairs +1\b", done.out)
    (code,) = re.findall(r"(?s)```python\n(.*?)```", text)
    namespace: dict[str, Any] = {"swjoin": swjoin}
    exec(code.replace("swjoin.count", "found = swjoin.count"), namespace)
    assert namespace["found"].count == 1


@pytest.mark.long
@pytest.mark.mpi
def test_the_same_on_ranks(swjoin_command: Any, tmp_path: Path) -> None:
    text = write(tmp_path / "text.csv", table(), delimiter=";", null="NA")
    argv = ["--on", "user", "--left-time", "at", "--right-time", "at", "--within", "20min", "-o", "count"]
    options = ["--csv", "delimiter=;", "--csv", "nulls=NA", "--csv", "types=user: string", "-n", "3"]
    done = swjoin_command("join", text, text, *argv, *options)
    assert done.code == 0, done.err
    proof = swjoin.count(table(), table(), **TIMES)
    assert proof.digest in done.out


names = st.text("abcxyz", min_size=1, max_size=4)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.none() | names, st.integers(0, 5_000), st.none() | st.integers(-9, 9)), max_size=12),
    delimiter=st.sampled_from(";|\t,:"),
    null=st.sampled_from(["", "NA", "-"]),
    time=st.sampled_from(["%d.%m.%Y %H.%M.%S", "%Y/%m/%d %H-%M-%S"]),
    encoding=st.sampled_from(["utf-8", "latin-1", "utf-16"]),
)
def test_random_dialects(rows: list[Any], delimiter: str, null: str, time: str, encoding: str, tmp_path: Path) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us")), ("n", pa.int64())])
    columns = zip(*[(u, (START + s) * 1_000_000, n) for u, s, n in rows], strict=True) if rows else [[], [], []]
    whole = pa.table([pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)], schema=schema)
    text = write(tmp_path / "text.csv", whole, delimiter=delimiter, null=null, time=time, encoding=encoding)
    said = {"delimiter": delimiter, "nulls": [null], "times": [time], "encoding": encoding}
    said["types"] = "user: string, at: timestamp[us], n: int64"
    found = swjoin.join(text, whole, csv=said, how="full", ids=True, **TIMES)
    answer = swjoin.join(whole, whole, how="full", ids=True, **TIMES)
    order = [("left_id", "ascending"), ("right_id", "ascending")]
    assert found.sort_by(order).equals(answer.sort_by(order))
