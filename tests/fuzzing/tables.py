"""Targets `parquet`, `csv`, `ipc`: files of rows, spoilt as bytes, and whole ones with values, types, columns nobody expects.

What: `ParquetTarget`, `CsvTarget`, `IpcTarget`.
Why: the user's files are read by a library and then by kernels that check nothing; whatever is in them, the answer is right or
there is none.
Stays out: the join and what is right (`joins`).
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import math
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from swjoin.config.run import StreamConfig, TimeConfig
from swjoin.connectors.times import zoned
from swjoin.core.errors import SwjoinError
from tests.fuzzing.harness import Wrong, check_refusal
from tests.fuzzing.joins import Answer, Inputs, answer_of, check_answer, check_whole_run
from tests.fuzzing.mutations import BOUNDARIES, spoil_bytes

_BOUNDS = ((-5, 5), (-20, 20), (0, 10), (3, 30), (-30, -2), (0, 0), (-(10**9), 10**9))
_WORDS = ("a", "b", "ab", "", "é", "x" * 40, "NA", "null", "nan", "0", "-1", " a", "a ", "1", "true")
_WHOLE = 100  # one in so many accepted inputs is run by `run_local`, too

# ---------------------------------------------------------------- columns


def _integers(random: Random, n: int, spread: int, low: int = 0) -> list[int]:
    return [low + random.randrange(spread) for _ in range(n)]


def _nulls(random: Random, values: list[Any]) -> list[Any]:
    return [None if random.random() < 0.1 else v for v in values] if random.random() < 0.4 else values


def _key_column(random: Random, n: int, kind: pa.DataType) -> pa.Array:
    values = _nulls(random, _integers(random, n, random.choice((1, 3, 8))))
    if pa.types.is_dictionary(kind):
        return _key_column(random, n, kind.value_type).dictionary_encode()
    if pa.types.is_boolean(kind):
        return pa.array([None if v is None else v % 2 == 0 for v in values])
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([None if v is None else b"key%d" % v for v in values], kind)
    if pa.types.is_integer(kind):
        edge = random.choice((0, 0, 0, 2 ** (kind.bit_width - 1) - 9))
        return pa.array([None if v is None else v + edge for v in values], kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    words = [None if v is None else _WORDS[v] for v in values]
    return pa.array([None if w is None else w.encode() for w in words], pa.binary()).cast(kind)


KEYS = (
    *(pa.int64(), pa.int64(), pa.int8(), pa.uint64(), pa.uint32(), pa.bool_(), pa.string(), pa.string(), pa.large_string()),
    *(pa.binary(), pa.binary(4), pa.date32(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.time32("s"), pa.time64("us")),
    *(pa.duration("ms"), pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.date64()),
)
TIMES = (
    *(pa.int64(), pa.int64(), pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("s", "UTC")),
    *(pa.date32(), pa.date64(), pa.uint64(), pa.int16(), pa.uint8()),
)
_ODD_TYPES = (
    *(pa.float64(), pa.decimal128(5, 2), pa.list_(pa.int8()), pa.null(), pa.month_day_nano_interval(), pa.float16()),
    *(pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.run_end_encoded(pa.int32(), pa.int64())),
    *(pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int8(), pa.float64()), pa.decimal256(50, 2), pa.binary_view()),
    *(pa.list_(pa.int8(), 2), pa.large_binary(), pa.time64("ns"), pa.duration("ns"), pa.timestamp("ns")),
)


def _time_column(random: Random, n: int, kind: pa.DataType) -> pa.Array:
    span = random.choice((1, 20, 100))
    values = sorted(_integers(random, n, span, random.choice((0, 0, -50)) if not pa.types.is_unsigned_integer(kind) else 0))
    if random.random() < 0.2:
        random.shuffle(values)
    if pa.types.is_timestamp(kind) and kind.unit == "ns" and random.random() < 0.9:
        values = [1000 * v for v in values]
    if pa.types.is_date64(kind):
        values = [86_400_000 * v for v in values]
    values = _nulls(random, values) if random.random() < 0.3 else values
    if pa.types.is_integer(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


def _payload_column(random: Random, n: int) -> pa.Array:
    choice = random.randrange(9)
    if choice == 0:
        return pa.array(
            _nulls(random, [random.choice((0.0, -0.0, math.nan, math.inf, 1e300, 0.1)) for _ in range(n)]), pa.float64()
        )
    if choice == 1:
        return pa.array(
            _nulls(random, [random.choice(_WORDS) for _ in range(n)]), random.choice((pa.string(), pa.large_string()))
        )
    if choice == 2:
        return pa.array(_nulls(random, [random.random() < 0.5 for _ in range(n)]), pa.bool_())
    if choice == 3:
        return pa.array(_nulls(random, [random.randbytes(random.choice((0, 3, 200))) for _ in range(n)]), pa.binary())
    if choice == 4:
        return pa.array(_nulls(random, _integers(random, n, 200, -100)), pa.decimal128(9, 3))
    if choice == 5:
        return pa.nulls(n, random.choice(_ODD_TYPES))
    if choice == 6:
        return _key_column(random, n, random.choice(KEYS))
    if choice == 7:
        return pa.array(
            _nulls(random, _integers(random, n, 100)),
            random.choice((pa.float32(), pa.int8(), pa.uint64(), pa.date64())),
            safe=False,
        )
    return _time_column(random, n, random.choice(TIMES))


def _table(random: Random, n: int, schema: dict[str, pa.DataType], more: int) -> pa.Table:
    columns = {
        name: _time_column(random, n, kind) if name == "ts" else _key_column(random, n, kind) for name, kind in schema.items()
    }
    columns |= {f"p{i}": _payload_column(random, n) for i in range(more)}
    if random.random() < 0.3:
        columns["row"] = pa.array(range(100, 100 + n), pa.int64())
    return pa.table(columns)


def draw(random: Random, keys: tuple[pa.DataType, ...], times: tuple[pa.DataType, ...]) -> tuple[Inputs, list[pa.Table]]:
    """Two streams that can be joined, and how."""
    names = ("k",) if random.random() < 0.8 else ("k", "k2")
    kinds = {name: random.choice(keys) for name in names}
    tables, streams = [], []
    time = random.choice(times)
    for _ in range(2):
        table = _table(random, random.choice((0, 1, 5, 20, 20, 30)), {**kinds, "ts": time}, random.randrange(3))
        with_id = "row" in table.column_names and random.random() < 0.5
        needs_unit = random.random() < (0.97 if pa.types.is_integer(time) else 0.03)
        unit = random.choice(("us", "us", "ms", "s", "ns")) if needs_unit else None
        streams.append(StreamConfig("", names, "ts", unit, "row" if with_id else None))  # type: ignore[arg-type]
        tables.append(table)
        comparable = [t for t in times if pa.types.is_integer(t) or pa.types.is_integer(time) or zoned(t) == zoned(time)]
        time = random.choice(comparable if random.random() < 0.95 else times)
    bounds = random.choice(_BOUNDS)
    scale = random.choice((1, 1, 1000, 10**6))
    late, allowed = random.choice(("drop",) * 5 + ("error",)), random.choice((0, 0, 10, 10**8))
    time_config = TimeConfig("event", allowed, late, sort=not allowed and random.random() < 0.2)  # type: ignore[arg-type]
    return Inputs(*streams, (bounds[0] * scale, bounds[1] * scale), time_config), tables


# ---------------------------------------------------------------- columns nobody expects


def _odd_column(random: Random, column: pa.ChunkedArray) -> pa.Array:
    """Extreme values of the same type, or nulls, or another type."""
    n, kind = len(column), column.type
    choice = random.randrange(5)
    try:
        if choice == 0:
            return pa.nulls(n, random.choice((kind, *_ODD_TYPES)))
        if choice == 1:
            return _payload_column(random, n)
        if choice == 2 and (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
            base = pa.int64() if kind.bit_width == 64 else kind if pa.types.is_integer(kind) else pa.int32()
            bits = base.bit_width
            edges = [(e + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for e in BOUNDARIES]
            values = [random.choice(edges) if random.random() < 0.3 else v for v in column.cast(base).to_pylist()]
            return pa.array(values, base).view(kind)
        if choice == 3:
            return column.cast(random.choice((*KEYS, *TIMES, *_ODD_TYPES))).combine_chunks()
        return (
            _key_column(random, n, random.choice(KEYS))
            if random.random() < 0.5
            else _time_column(random, n, random.choice(TIMES))
        )
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return _key_column(random, n, pa.int64())


def _odd_table(random: Random, table: pa.Table) -> pa.Table:
    for _ in range(random.choice((1, 1, 2))):
        place = random.randrange(max(1, table.num_columns))
        choice = random.randrange(8)
        if not table.num_columns:
            return table
        name = table.column_names[place]
        if choice == 0:
            table = table.remove_column(place)
        elif choice == 1:
            names = list(table.column_names)
            names[place] = random.choice(("", "k", "ts", "K", "left_id", "a" * 300, "é\n", "p0"))
            table = table.rename_columns(names)
        elif choice == 2:
            table = table.append_column(random.choice(("k", "ts", "left_ts", "q")), _payload_column(random, table.num_rows))
        elif choice == 3 and table.num_columns > 1:
            table = table.select(random.sample(range(table.num_columns), table.num_columns))
        else:
            table = table.set_column(place, name, _odd_column(random, table.column(place)))
    return table


# ---------------------------------------------------------------- targets


class _FilesTarget:
    """What the formats share. seeds: whole files to spoil as bytes, with how they are joined and the other side's file."""

    name, suffix = "", ""
    keys: tuple[pa.DataType, ...] = KEYS
    times: tuple[pa.DataType, ...] = TIMES

    def prepare(self, folder: Path) -> None:
        self.folder = folder
        self.seeds: list[tuple[Inputs, bytes, bytes]] = []
        random = Random(1)
        while len(self.seeds) < 60:
            inputs, tables = draw(random, self.keys, self.times)
            try:
                left, right = (self.encode(random, table) for table in tables)
            except (pa.ArrowException, NotImplementedError, ValueError):
                continue
            self.seeds.append((inputs, left, right))
        self.every = [data for _, left, right in self.seeds for data in (left, right)]

    def encode(self, random: Random, table: pa.Table) -> bytes:
        raise NotImplementedError

    def read(self, config: StreamConfig, files: list[Path]) -> list[pa.Table]:
        """An independent reading."""
        raise NotImplementedError

    def spoil(self, random: Random, data: bytes) -> bytes:
        return spoil_bytes(random, data, self.every)

    def attempt(self, random: Random) -> str:
        for side in ("left", "right"):
            shutil.rmtree(self.folder / side, ignore_errors=True)
        how = random.choice(("bytes", "bytes", "values", "directory"))
        if how == "bytes":
            inputs, *data = random.choice(self.seeds)
            if random.random() > 0.03:
                side = random.randrange(2)
                data[side] = self.spoil(random, data[side])
            else:
                how = "nothing"
            files = [[piece] for piece in data]
        else:
            inputs, tables = draw(random, self.keys, self.times)
            files = [self._pieces(random, table, how) for table in tables]
        return self.check(self._written(random, inputs, files), how, whole=random.randrange(_WHOLE) == 0)

    def _pieces(self, random: Random, table: pa.Table, how: str) -> list[bytes]:
        """A table as one file or several, with something odd in one."""
        parts = [table]
        if how == "directory":
            cut = random.randrange(table.num_rows + 1)
            parts = [table.slice(0, cut), table.slice(cut)] * random.choice((1, 1, 2))
        odd = random.randrange(len(parts))
        if random.random() < 0.6:
            parts[odd] = _odd_table(random, parts[odd])
        out = []
        for part in parts:
            try:
                out.append(self.encode(random, part))
            except (pa.ArrowException, NotImplementedError, ValueError):  # a type that the format does not have
                out.append(self.encode(random, pa.table({"k": [1, 2], "ts": [3, 4]})))
        if how == "directory" and random.random() < 0.2:
            out[odd] = self.spoil(random, out[odd])
        return out

    def _written(self, random: Random, inputs: Inputs, files: list[list[bytes]]) -> Inputs:
        streams = []
        for side, config, pieces in zip(("left", "right"), inputs.streams, files, strict=True):
            folder = self.folder / side
            folder.mkdir()
            for i, piece in enumerate(pieces):
                (folder / f"{i}{self.suffix}").write_bytes(piece)
            path = folder if len(pieces) > 1 else folder / f"0{self.suffix}"
            streams.append(dataclasses.replace(config, path=str(path)))
        return dataclasses.replace(inputs, left=streams[0], right=streams[1])

    def check(self, inputs: Inputs, what: str, *, whole: bool = False) -> str:
        """Join these files; an answer must be the reference's."""
        try:
            answer = answer_of(inputs)
        except SwjoinError as error:
            check_refusal(error, str(self.folder), "left:", "right:", "key column", "join keys")
            memory = " (more memory than there may be)" if re.search(r"alloc\w* of size|alloc\w* size", str(error)) else ""
            return f"refused: {what}{memory}"
        check_answer(inputs, answer, self.read)
        self.check_more(inputs, answer)
        if whole:
            check_whole_run(inputs, answer, self.folder)
        return f"accepted: {what}"

    def check_more(self, inputs: Inputs, answer: Answer) -> None:
        """What only this format knows."""


class ParquetTarget(_FilesTarget):
    """Raw bytes: the pages, the footer, or anywhere."""

    name, suffix = "parquet", ".parquet"

    def encode(self, random: Random, table: pa.Table) -> bytes:
        sink = io.BytesIO()
        pq.write_table(
            table,
            sink,
            row_group_size=random.choice((3, 7, 1000)),
            compression=random.choice(("none", "none", "snappy", "gzip", "zstd", "lz4")),
            use_dictionary=random.random() < 0.5,
            data_page_size=random.choice((64, 1 << 20)),
            data_page_version=random.choice(("1.0", "2.0")),
            version=random.choice(("1.0", "2.6")),
            store_schema=random.random() < 0.7,
            write_page_checksum=random.random() < 0.1,
            coerce_timestamps=None,
        )
        return sink.getvalue()

    def read(self, config: StreamConfig, files: list[Path]) -> list[pa.Table]:
        return [pq.ParquetFile(path).read(use_threads=False) for path in files]

    def spoil(self, random: Random, data: bytes) -> bytes:
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        choice = random.randrange(5)
        if choice == 0 or not 4 < footer < len(data):
            return spoil_bytes(random, data, self.every)
        pages, rest = data[4:footer], data[footer:-8]
        if choice == 1:
            pages = spoil_bytes(random, pages, self.every)[: len(pages)].ljust(len(pages), b"\0")
        elif choice == 2:
            rest = spoil_bytes(random, rest, [d[-300:-8] for d in self.every])
        else:  # few bits, so that most of it can still be read
            spoilt = bytearray(pages if choice == 3 else rest)
            for _ in range(random.choice((1, 1, 2))):
                spoilt[random.randrange(len(spoilt))] ^= 1 << random.randrange(8)
            pages, rest = (bytes(spoilt), rest) if choice == 3 else (pages, bytes(spoilt))
        return b"PAR1" + pages + rest + len(rest).to_bytes(4, "little") + b"PAR1"


class IpcTarget(_FilesTarget):
    """Arrow IPC files and streams, whose buffers are taken as they are."""

    name, suffix = "ipc", ".arrow"

    def encode(self, random: Random, table: pa.Table) -> bytes:
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=random.choice((None, None, "lz4", "zstd")))
        open_writer = random.choice((pa.ipc.new_file, pa.ipc.new_stream))
        with open_writer(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=random.choice((3, 1000)))
        return sink.getvalue()

    def read(self, config: StreamConfig, files: list[Path]) -> list[pa.Table]:
        out = []
        for path in files:
            data = path.read_bytes()
            with (pa.ipc.open_file if data[:6] == b"ARROW1" else pa.ipc.open_stream)(data) as reader:
                out.append(reader.read_all())
        return out


_CELLS = (
    *(
        "",
        '""',
        '"',
        "a",
        '"a""b"',
        '"a\nb"',
        '"a,b"',
        "NA",
        "null",
        "NULL",
        "nan",
        "NaN",
        "N/A",
        "#N/A",
        "-",
        "1",
        "01",
        "+1",
        " 1",
    ),
    *(
        "1 ",
        "1.0",
        "1e5",
        "0x10",
        "1_000",
        "9" * 18,
        "9" * 19,
        "9" * 40,
        "-" + "9" * 19,
        "18446744073709551615",
        "true",
        "false",
    ),
    *("True", "2024-01-01", "2024-02-30", "2024-01-01 00:00:00", "2024-01-01T00:00:00Z", "2024-01-01 00:00:00.123456789"),
    *(
        "12:30:45",
        "99999-01-01",
        "-0001-01-01",
        "1,2",
        "a\tb",
        "é",
        "\ufeff",
        "\x00",
        "x" * 3000,
        "1\r",
        "\r\n",
        "\u0661",
        "inf",
    ),
)


class CsvTarget(_FilesTarget):
    """Text: cells, rows, encodings."""

    name, suffix = "csv", ".csv"
    keys = (pa.int64(), pa.int64(), pa.string(), pa.string(), pa.bool_(), pa.date32(), pa.timestamp("s"))
    times = (pa.int64(), pa.int64(), pa.timestamp("s"), pa.date32())

    def encode(self, random: Random, table: pa.Table) -> bytes:
        sink = io.BytesIO()
        columns = []
        for column in table.columns:
            kind = column.type
            if pa.types.is_dictionary(kind):
                column, kind = column.cast(kind.value_type), kind.value_type
            columns.append(pa.nulls(len(column), pa.string()) if kind.id in _NOT_IN_CSV else column)
        quoting = random.choice(("needed", "needed", "all_valid"))
        arrow_csv.write_csv(pa.table(columns, table.column_names), sink, arrow_csv.WriteOptions(quoting_style=quoting))
        return sink.getvalue()

    def read(self, config: StreamConfig, files: list[Path]) -> list[pa.Table]:
        """A column has the type of the first file with a value in it; a header needs no line break."""
        types: dict[str, pa.DataType] = {}

        def table_of(path: Path) -> pa.Table:
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            source = pa.BufferReader(data if b"\n" in data or b"\r" in data or not data.strip() else data + b"\n")
            options = {"strings_can_be_null": True, "quoted_strings_can_be_null": False, "null_values": [""]}
            convert = arrow_csv.ConvertOptions(column_types=types, **options)
            return arrow_csv.read_csv(source, arrow_csv.ReadOptions(use_threads=False), convert_options=convert)

        for path in files:
            for field, column in zip((table := table_of(path)).schema, table.columns, strict=True):
                if column.null_count < len(column):
                    types.setdefault(field.name, field.type)
        tables = [table_of(path) for path in files]
        return [t.cast(pa.schema([(n, types.get(n, pa.string())) for n in t.column_names])) for t in tables]

    def spoil(self, random: Random, data: bytes) -> bytes:
        choice = random.randrange(8)
        if choice < 2:
            return spoil_bytes(random, data, self.every)
        if choice == 2:
            return random.choice(
                (
                    b"\xef\xbb\xbf" + data,
                    data.decode("utf-8", "replace").encode("utf-16"),
                    data.decode("utf-8", "replace").encode("latin1", "replace"),
                    data.replace(b"\n", b"\r\n"),
                    data.replace(b"\n", b"\r"),
                    data.replace(b",", b";"),
                    data + b"\n\n",
                    data.rstrip(b"\n"),
                    b"",
                    b"\n" + data,
                    data + data,
                )
            )
        lines = data.decode("utf-8", "replace").split("\n")
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.randrange(len(lines))
            cells = lines[at].split(",")
            place = random.randrange(len(cells))
            if choice == 3:
                cells.insert(place, random.choice(_CELLS))
            elif choice == 4 and len(cells) > 1:
                del cells[place]
            elif choice == 5:
                lines.insert(random.randrange(len(lines) + 1), random.choice((lines[at], "", ",", " ", '"')))
                continue
            else:
                cells[place] = random.choice(_CELLS)
            lines[at] = ",".join(cells)
        return "\n".join(lines).encode("utf-8", "replace")

    def attempt(self, random: Random) -> str:
        self.suffix = ".csv.gz" if random.random() < 0.05 else ".csv"
        return super().attempt(random)

    def _written(self, random: Random, inputs: Inputs, files: list[list[bytes]]) -> Inputs:
        if self.suffix == ".csv.gz":
            files = [[gzip.compress(p, 1) for p in pieces] for pieces in files]
            if random.random() < 0.5:
                files[0][0] = spoil_bytes(random, files[0][0], self.every)
        return super()._written(random, inputs, files)

    def check_more(self, inputs: Inputs, answer: Answer) -> None:
        """Python's own CSV reader sees the same rows, where the text leaves no doubt about quotes."""
        for config in inputs.streams:
            if str(config.path).endswith(".csv"):
                self._compare(Path(str(config.path)).read_bytes(), config)

    def _compare(self, data: bytes, config: StreamConfig) -> None:
        try:
            text = data.removeprefix(b"\xef\xbb\xbf").decode()
        except UnicodeDecodeError:
            return  # columns that are no text are taken as bytes
        if '"' in text or "\0" in text or re.search(r"\r(?!\n)", text):
            return
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        table = self.read(config, [Path(str(config.path))])[0]
        if table.column_names != header or table.num_rows != len(rows):
            raise Wrong(f"{table.num_rows} rows of {table.column_names}; Python's reader has {len(rows)} of {header}")
        for place, column in enumerate(table.columns):
            if pa.types.is_string(column.type) and column.to_pylist() != [row[place] or None for row in rows]:
                raise Wrong(f"column {header[place]} is {column.to_pylist()[:5]}; Python's reader has others")
            if pa.types.is_int64(column.type):
                others = [int(row[place]) if row[place] else None for row in rows]
                if column.to_pylist() != others:
                    raise Wrong(f"column {header[place]} is {column.to_pylist()[:5]}; Python's reader has {others[:5]}")


_NOT_IN_CSV = {
    *(pa.list_(pa.int8()).id, pa.struct([]).id, pa.map_(pa.string(), pa.int8()).id, pa.binary().id, pa.large_binary().id),
    *(pa.binary(4).id, pa.month_day_nano_interval().id, pa.float16().id, pa.list_(pa.int8(), 2).id, pa.binary_view().id),
    *(pa.run_end_encoded(pa.int32(), pa.int64()).id, pa.duration("s").id, pa.string_view().id, pa.null().id),
}
