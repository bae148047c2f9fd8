"""The rows of a plan of several joins, in DuckDB's SQL.

What: `define_found(db, plan, sources)`: the view `found` of the ids of the result's rows.
Why: a plan's result is recomputed node by node, from its logical plan alone: no stage, edge or watermark of the run has a part.
Stays out: the SQL of one join (`duckdb.join_rows`), reading the sources (`duckdb.verify`).

Rows of an inner node are a table on disk, each computed once: rid, id, ts, and c0, c1, ... for those of its columns that were
read from the sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from swjoin.connectors.files.verification import condition_sql, kinds_of
from swjoin.core.aggregate_functions import PICKS
from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.columns import type_named
from swjoin.core.ids import LAST_TIME_US
from swjoin.core.join_semantics import JOIN_KINDS
from swjoin.core.row_codec import storage
from swjoin.core.row_digests import row_hashes
from swjoin.core.time_windows import TimeWindows
from swjoin.duckdb.join_rows import IDS, NONE, Selected, rows_of_join
from swjoin.plan.aggregates import Aggregate, AggregateCall
from swjoin.plan.bound import columns_read_by, scope_of
from swjoin.plan.columns import batch_map_of
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.kept_rows import AlignedWindows, Ranked, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import (
    Copies,
    Filter,
    IntervalJoin,
    LogicalPlan,
    Node,
    Period,
    Project,
    Result,
    Spread,
    Union,
    join_columns,
)
from swjoin.plan.lookups import Lookup, equality
from swjoin.plan.map_batches import MapBatches

_BATCH_ROWS = 1 << 16  # that a function gets


@dataclass(frozen=True)
class NodeTable:
    """columns: by the names that the plan has for them, those of the table."""

    table: str
    columns: Mapping[str, str]


def define_found(db: Any, plan: LogicalPlan, sources: Mapping[str, NodeTable]) -> NodeTable | None:
    """sources: their rows that were not late. The plan has one result. Returns None if its rows are the pairs of a join; of
    others their table, and `found` has the row's id as l, and no r."""
    (result,) = (node for node in plan.nodes if isinstance(node, Result))
    found = dict(sources)
    if any(isinstance(node, Aggregate | LiveGroups) for node in plan.nodes):
        _define_exact(db)
    for number, node in enumerate(plan.ordered):
        if node.name == result.input and isinstance(node, IntervalJoin) and not result.of_values:
            db.execute(f"CREATE VIEW found AS {_rows(db, plan, node, found, IDS)}")
            return None
        if isinstance(node, Spread):  # any two rows meet
            found[node.name] = found[node.input]
            continue
        if isinstance(node, IntervalJoin):
            columns, selected = _selected(plan, node, found)
            rows = _rows(db, plan, node, found, selected)
        elif isinstance(node, Aggregate):
            columns, rows = _aggregate(plan, node, found[node.input])
        elif isinstance(node, Ranked):
            columns, rows = _ranked(plan, node, found[node.input])
        elif isinstance(node, Sessions):
            columns, rows = _sessions(plan, node, found[node.input])
        elif isinstance(node, TupleWindows):
            columns, rows = _tuple_windows(plan, node, found[node.input])
        elif isinstance(node, AlignedWindows):
            columns, rows = _aligned_windows(plan, node, found[node.input])
        elif isinstance(node, Views):
            columns, rows = _views(plan, node, found[node.input])
        elif isinstance(node, LiveGroups):
            columns, rows = _live_groups(plan, node, found[node.input])
        elif isinstance(node, CountedJoin):
            columns, rows = _counted_join(plan, node, found[node.input])
        elif isinstance(node, MapBatches):
            columns, rows = _mapped(db, plan, node, found[node.input], number)
        elif isinstance(node, Lookup):
            columns, rows = _lookup(plan, node, found)
        elif isinstance(node, Copies):
            columns, rows = _copies(node, found[node.input])
        elif isinstance(node, Union):
            columns, rows = _union(plan, node, found)
        elif isinstance(node, Period):
            columns, rows = dict(found[node.input].columns), _period(node, found[node.input])
        elif isinstance(node, Filter):
            columns, rows = _filter(plan, node, found[node.input])
        elif isinstance(node, Project):
            columns, rows = _projection(plan, node, found[node.input])
        else:
            continue
        db.execute(f"CREATE TABLE node{number} AS SELECT row_number() OVER () AS rid, * FROM ({rows})")
        found[node.name] = NodeTable(f"node{number}", columns)
        if isinstance(node, LiveGroups) or (isinstance(node, Aggregate) and any(map(_orders_by_ids, plan.nodes))):
            _set_ids(db, plan, node, found[node.name])
    db.execute(f"CREATE VIEW found AS SELECT id AS l, {NONE} AS r FROM {found[result.input].table}")
    return found[result.input]


def _rows(db: Any, plan: LogicalPlan, join: IntervalJoin, found: Mapping[str, NodeTable], selected: Selected) -> str:
    """A query of a join's rows. It replaces the views of the join before."""
    inputs, schemas = [found[name] for name in join.inputs], [plan.schema(name) for name in join.inputs]
    for stream, rows, key in zip(STREAM_NAMES, inputs, join.keys, strict=True):
        cell = "" if join.band is None else f" >> {join.band.cell_bits}"
        keys = ", ".join(f"{rows.columns[name]}{cell} AS k{i}" for i, name in enumerate(key))
        db.execute(f"CREATE OR REPLACE VIEW {stream}_rows AS SELECT *, {keys} FROM {rows.table}")
    where = None
    if join.semantics.where is not None:
        types = [schema.types for schema in schemas]
        kinds = [kinds_of((n, type_named(types[side][n])) for n in rows.columns) for side, rows in enumerate(inputs)]
        names, quoted = [list(found) for found in types], lambda side, name: f"{'lr'[side]}_{inputs[side].columns[name]}"
        where = condition_sql(join.semantics.where, names, join.keys, kinds, "duckdb", quoted)
    if join.band is not None:
        tests = [_near_keys(join.band, *(f"{'lr'[s]}_{inputs[s].columns[key[0]]}" for s, key in enumerate(join.keys)))]
        where = " AND ".join(f"({test})" for test in [*tests, *([] if where is None else [where])])
    return rows_of_join(db, join.semantics, where, selected)


def as_type(column: Any, kind: Any) -> Any:
    """A cast. DuckDB's differences of times are intervals, which Arrow does not cast to durations."""
    import pyarrow as pa

    if column.type != pa.month_day_nano_interval():
        return column.cast(kind)
    day = 86_400_000_000
    micros = [None if v is None else v.months * 30 * day + v.days * day + v.nanoseconds // 1000 for v in column.to_pylist()]
    return pa.array(micros, pa.duration("us")).cast(kind)


def _near_keys(band: BandKeys, left: str, right: str) -> str:
    """Whether two keys of one cell, columns, are those of partners: `BandKeys.meet`."""
    narrow, wide = (left, right) if band.wide == RIGHT else (right, left)
    return f"{narrow} - {wide} + ({wide} & 1) * {band.span + 1} BETWEEN 0 AND {band.span}"


def _selected(plan: LogicalPlan, join: IntervalJoin, found: Mapping[str, NodeTable]) -> tuple[dict[str, str], Selected]:
    """The columns of a join's rows that its inputs have, and what is selected for them: id, time and columns."""
    inputs = [found[name].columns for name in join.inputs]
    columns: dict[str, str] = {}
    time = {"max": "greatest(l_ts, r_ts)", "min": "least(l_ts, r_ts)", "left": "l_ts"}[join.output_time]
    pairs = [f"pair_digest(l_id, r_id) AS id, {time} AS ts"]
    alone = [f"pair_digest(id, {NONE}) AS id, ts"], [f"pair_digest({NONE}, id) AS id, ts"]
    for name, _, side, origin in join_columns(join, plan.schema(join.left), plan.schema(join.right)):
        if origin not in inputs[side]:
            continue
        columns[name] = out = f"c{len(columns)}"
        values = ["NULL", "NULL"]
        values[side] = inputs[side][origin]
        if side == LEFT and origin in join.left_key and JOIN_KINDS[join.semantics.how].unmatched[RIGHT]:
            values[RIGHT] = inputs[RIGHT][join.right_key[join.left_key.index(origin)]]
        pairs.append(f"{'lr'[side]}_{inputs[side][origin]} AS {out}")
        for i, value in enumerate(values):
            alone[i].append(f"{value} AS {out}")
    return columns, Selected(*(", ".join(part) for part in (pairs, *alone)))


def _period(node: Period, rows: NodeTable) -> str:
    columns = "".join(f", {column}" for column in rows.columns.values())
    bound = f"ts {'<' if node.ends else '>='} {node.at_us}"
    return f"SELECT id, ts{columns} FROM {rows.table} WHERE {bound}"


def _filter(plan: LogicalPlan, node: Filter, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of a filter's input, and a query of its rows."""
    from swjoin.expressions.duckdb_text import duckdb_text

    condition = duckdb_text(node.condition, scope_of(plan.schema(node.input).columns), rows.columns)
    columns = "".join(f", {column}" for column in rows.columns.values())
    return dict(rows.columns), f"SELECT id, ts{columns} FROM {rows.table} WHERE {condition}"


def _copies(node: Copies, rows: NodeTable) -> tuple[dict[str, str], str]:
    first, second = rows.columns[node.first], rows.columns[node.second]
    kept = {name: column for name, column in rows.columns.items() if name not in (node.first, node.second)}
    values = "".join(f", {column}" for column in kept.values())
    query = f"SELECT id, ts{values}, {{}} AS {first} FROM {rows.table}"
    other = f"{first} >> {node.cell_bits} <> {second} >> {node.cell_bits}"
    return kept | {node.column: first}, f"{query.format(first)} UNION ALL {query.format(second)} WHERE {other}"


def _projection(plan: LogicalPlan, node: Project, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns that can be computed from those of the input, and a query of a projection's rows."""
    from swjoin.expressions.duckdb_text import duckdb_text

    columns = plan.schema(node.input).columns
    texts = {
        name: duckdb_text(text, scope_of(columns), rows.columns)
        for name, text in node.columns
        if set(columns_read_by(text, columns, node.name)) <= set(rows.columns)
    }
    made = {name: f"c{i}" for i, name in enumerate(texts)}
    values = "".join(f", {text} AS {made[name]}" for name, text in texts.items())
    return made, f"SELECT id, ts{values} FROM {rows.table}"


def _mapped(db: Any, plan: LogicalPlan, node: MapBatches, rows: NodeTable, number: int) -> tuple[dict[str, str], str]:
    """The columns that a function gives, and a query of its rows. Batches are not those of the run. number: of the node."""
    import pyarrow as pa

    schema = plan.schema(node.input)
    mapped = batch_map_of(node, schema, {name for name, _ in node.columns})
    shown = ", ".join(rows.columns[name] for name in schema.types)
    whole = db.sql(f"SELECT rid, {shown} FROM {rows.table}").to_arrow_table().combine_chunks()
    rids, columns = whole.column(0), whole.columns[1:]
    given = pa.table([as_type(c, kind) for c, (_, kind) in zip(columns, mapped.read, strict=True)], list(schema.types))
    size = max(1, len(given)) if mapped.of_whole_table else _BATCH_ROWS
    parts = [mapped.mapped(batch) for batch in given.to_batches(max_chunksize=size)]
    made = {name: f"c{i}" for i, (name, _) in enumerate(node.columns)}
    arrays = [pa.chunked_array([part[i] for part in parts], storage(kind)) for i, (_, kind) in enumerate(mapped.columns)]
    db.register("mapped", pa.table([rids, *arrays], ["rid", *made.values()]))
    db.execute(f"CREATE TABLE mapped{number} AS SELECT * FROM mapped")
    db.unregister("mapped")
    values = "".join(f", m.{column}" for column in made.values())
    return made, f"SELECT r.id, r.ts{values} FROM {rows.table} r JOIN mapped{number} m USING (rid)"


def _lookup(plan: LogicalPlan, node: Lookup, found: Mapping[str, NodeTable]) -> tuple[dict[str, str], str]:
    """The columns of a lookup that its inputs have, and a query of its rows."""
    from swjoin.expressions.duckdb_text import duckdb_text

    sides = [found[name] for name in node.inputs]
    columns: dict[str, str] = {}
    for short, rows in zip("st", sides, strict=True):
        columns |= {name: f"{short}_{column}" for name, column in rows.columns.items()}
    scope = scope_of([column for name in node.inputs for column in plan.schema(name).columns])
    tests = [duckdb_text(equality(*pair), scope, columns) for pair in node.keys]
    if node.where is not None:
        tests.append(f"TRY({duckdb_text(node.where, scope, columns)})")  # an overflow is null
    stream, table = (
        f"(SELECT {', '.join(f'{c} AS {short}_{c}' for c in ('rid', 'id', 'ts', *rows.columns.values()))} FROM {rows.table})"
        for short, rows in zip("st", sides, strict=True)
    )
    kind = "LEFT JOIN" if node.how == "left" else "JOIN"
    joined = f"{stream} {kind} {table} ON {' AND '.join(f'({test})' for test in tests) or 'true'}"
    shown = sides[LEFT].columns if not node.widens else columns
    made = {name: f"c{i}" for i, name in enumerate(shown)}
    values = "".join(f", {columns[name]} AS {made[name]}" for name in shown)
    if node.widens:
        digest = f"pair_digest(s_id, coalesce(t_id, {NONE})) AS id, s_ts AS ts"
        return made, f"SELECT {digest}{values} FROM {joined}"
    matched = f"SELECT DISTINCT s_rid FROM {joined}"
    digest = f"pair_digest(s_id, {NONE}) AS id, s_ts AS ts"
    return made, f"SELECT {digest}{values} FROM {stream} {node.how.upper()} JOIN ({matched}) USING (s_rid)"


def _define_exact(db: Any) -> None:
    """exact_sum(DOUBLE[]) and exact_mean(total as text, BIGINT), over arrays: a NaN that Python returns would become null."""
    import pyarrow as pa

    def sums(values):  # type: ignore[no-untyped-def]  # DuckDB evaluates annotations
        return pa.array([None if value is None else _exact_sum(value) for value in values.to_pylist()], pa.float64())

    def means(totals, counts):  # type: ignore[no-untyped-def]
        pairs = zip(totals.to_pylist(), counts.to_pylist(), strict=True)
        return pa.array([None if total is None else _mean(Decimal(total), count) for total, count in pairs], pa.float64())

    options = {"type": "arrow", "null_handling": "special"}
    db.create_function("exact_sum", sums, ["DOUBLE[]"], "DOUBLE", **options)
    db.create_function("exact_mean", means, ["VARCHAR", "BIGINT"], "DOUBLE", **options)


def _mean(total: Decimal, count: int) -> float:
    above, below = total.as_integer_ratio()
    return above / (below * count)


def _exact_sum(values: list[float]) -> float:
    """The sum, rounded once; NaN of infinities of both signs."""
    try:
        return math.fsum(values)
    except ValueError:
        return math.nan
    except OverflowError:  # on the way, or at the end
        total = sum(map(Fraction, values))
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf


def _called(call: AggregateCall, kind: str, column: str, by: str, earlier: str, over: str) -> str:
    """A call in DuckDB's SQL. kind: type of the column. by: the column that is compared. earlier: by which rows are ordered,
    with a place for a word behind each. over: the window of a running aggregate; "" for none."""
    if call.function in ("first", "last", "arg_min", "arg_max") or call.place > 1:
        how, by = " DESC" if call.function in ("last", "max", "arg_max") else "", by or column
        order = earlier.format(how) if call.function in ("first", "last") else f"{by}{how}, {earlier.format('')}"
        known = f"{column} IS NOT NULL" + (f" AND {by} IS NOT NULL" if call.by is not None else "")
        return f"(list({column} ORDER BY {order}) FILTER (WHERE {known}))[{call.place}]"
    of = f"DISTINCT {column}" if call.distinct else column
    if call.function in ("count", "min", "max"):
        return f"{call.function}({of}){over}"
    if kind in ("double", "float", "halffloat"):
        total = f"exact_sum(list({of}::DOUBLE) FILTER (WHERE {column} IS NOT NULL){over})"
        return f"{total} / count({of}){over}" if call.function == "avg" else total
    if call.function == "avg":
        return f"exact_mean((sum({of}){over})::VARCHAR, count({of}){over})"
    return f"sum({of}){over}" if kind.startswith("decimal") else f"(sum({of}){over})::BIGINT"


def _unrolled(windows: TimeWindows, table: str) -> str:
    """A query of every row, once for each window that it is in, with the window's start."""
    size, slide, origin = astuple(windows)

    def floor(value: str) -> str:
        return f"({value} - (({value}) % {slide} + {slide}) % {slide}) // {slide}"

    numbers = f"generate_series({floor(f'(ts - {origin + size})')} + 1, {floor(f'(ts - {origin})')})"
    return f"SELECT *, {origin} + {slide} * unnest({numbers}) AS start_us FROM {table}"


def _instant(us: str, kind: str) -> str:
    """A timestamp of this type from microseconds."""
    return f"make_timestamp({us}){' AT TIME ZONE ' + repr('UTC') if 'tz=' in kind else ''}"


def _aggregate(plan: LogicalPlan, node: Aggregate, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of an aggregate, and a query of its rows. Their ids differ, as those of the run do, but are others: the
    digest of a result with aggregates is of values."""
    types, unrolled = plan.schema(node.input).types, _unrolled(node.windows, rows.table)
    keys = [rows.columns[name] for name in node.key]
    edges = [_instant(f"start_us + {us}", node.time_type) for us in (0, node.windows.size_us)]
    calls, order = [], f"{rows.columns[node.order]}{{0}}, " if node.order else ""
    over = " OVER so_far" if node.running else ""
    for call in node.calls:
        column = "*" if call.column is None else rows.columns[call.column]
        by = "" if call.by is None else rows.columns[call.by]
        kind = "" if call.column is None else types[call.column]
        calls.append(_called(call, kind, column, by, order + "ts{0}, id{0}", over))
    names = [*node.key, node.start, node.end, *(call.name for call in node.calls)]
    made = {name: f"c{i}" for i, name in enumerate(names)}
    values = "".join(f", {text} AS {made[name]}" for name, text in zip(names, [*keys, *edges, *calls], strict=True))
    grouped, ts = ", ".join([*keys, "start_us"]), f"start_us + {node.ts_after_us}"
    selected = f"SELECT hash({grouped}) AS id, {ts} AS ts{values} FROM ({unrolled})"
    if not node.running:
        return made, f"{selected} GROUP BY {grouped}"
    so_far = (
        f"WINDOW so_far AS ({'PARTITION BY ' + ', '.join(keys) if keys else ''} ORDER BY start_us)"  # and all that is equal
    )
    return made, f"{selected} {so_far} QUALIFY row_number() OVER (PARTITION BY {grouped}) = 1"


def _orders_by_ids(node: Node) -> bool:
    picks = isinstance(node, Aggregate) and any(call.function in PICKS or call.place > 1 for call in node.calls)
    return isinstance(node, Ranked | TupleWindows | CountedJoin) or picks


def _set_ids(db: Any, plan: LogicalPlan, node: Aggregate | LiveGroups, rows: NodeTable) -> None:
    """Give a node's rows the ids that they have in a run: by them is ordered what is equal."""
    import pyarrow as pa

    names = [*node.key, node.start if isinstance(node, Aggregate) else node.as_of]
    columns = ", ".join(rows.columns[name] for name in names)
    found = db.sql(f"SELECT rid, {columns} FROM {rows.table}").to_arrow_table().combine_chunks()
    types = [type_named(plan.schema(node.name).types[name]) for name in names]
    arrays = [found.column(i + 1).combine_chunks().cast(kind) for i, kind in enumerate(types)]
    hashes = row_hashes(pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(names))]))
    db.register("given_ids", pa.table({"rid": found.column("rid"), "given": hashes}))
    given = f"SELECT node.* REPLACE (given AS id) FROM {rows.table} AS node JOIN given_ids USING (rid)"
    db.execute(f"CREATE OR REPLACE TABLE {rows.table} AS {given}")
    db.unregister("given_ids")


def _ranked(plan: LogicalPlan, node: Ranked, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of a top-n, and a query of its rows."""
    names = [name for name in plan.schema(node.input).types if name in rows.columns]
    values = [rows.columns[name] for name in names]
    for name, us in ((node.start, 0), (node.end, node.windows.size_us)):
        if name:
            names.append(name)
            values.append(_instant(f"start_us + {us}", node.time_type))
    made = {name: f"c{i}" for i, name in enumerate([*names, node.rank])}
    shown = "".join(f", {value} AS {made[name]}" for name, value in zip([*names, node.rank], [*values, "number"], strict=True))
    order = "".join(
        f"{rows.columns[column]} {'DESC' if down else 'ASC'} NULLS {'FIRST' if first else 'LAST'}, "
        for column, down, first in node.order
    )
    groups = ", ".join(["start_us", *(rows.columns[name] for name in node.key)])
    numbered = f"SELECT *, row_number() OVER (PARTITION BY {groups} ORDER BY {order}id) AS number"
    start = f"(start_us::HUGEINT + {1 << 64}) % {1 << 64}"
    of_windows = f"SELECT union_id({start}, id) AS id, start_us + {node.ts_after_us} AS ts{shown}"
    return made, f"{of_windows} FROM ({numbered} FROM ({_unrolled(node.windows, rows.table)})) WHERE number <= {node.most}"


def _sessions(plan: LogicalPlan, node: Sessions, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of sessions, and a query of their rows."""
    names = [name for name in plan.schema(node.input).types if name in rows.columns]
    made = {name: f"c{i}" for i, name in enumerate([*names, node.start, node.end])}
    edges = _instant("start_us", node.time_type), _instant("end_us", node.time_type)
    values = [*(rows.columns[name] for name in names), *edges]
    shown = "".join(f", {value} AS {name}" for name, value in zip(made.values(), values, strict=True))
    keys = ", ".join(rows.columns[name] for name in node.key)
    by, of_key = ("PARTITION BY " + keys if keys else ""), ("PARTITION BY session, " + keys if keys else "PARTITION BY session")
    apart = f"SELECT *, coalesce(ts - lag(ts) OVER ({by} ORDER BY ts) >= {node.gap_us}, true) AS first FROM {rows.table}"
    numbered = f"SELECT *, sum(first::BIGINT) OVER ({by} ORDER BY ts) AS session FROM ({apart})"
    ends = f"min(ts) OVER ({of_key}) AS start_us, max(ts) OVER ({of_key}) + {node.gap_us} AS end_us"
    return made, f"SELECT id, end_us + {node.ts_after_us} AS ts{shown} FROM (SELECT *, {ends} FROM ({numbered}))"


def _tuple_windows(plan: LogicalPlan, node: TupleWindows, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of windows of tuples, and a query of their rows."""
    keys = [rows.columns[name] for name in node.key]
    by, size, slide = ("PARTITION BY " + ", ".join(keys) if keys else ""), node.size, node.slide
    counted = f"SELECT *, row_number() OVER ({by} ORDER BY ts, id) - 1 AS n, count(*) OVER ({by}) AS of_group FROM {rows.table}"
    numbers = f"generate_series(greatest(0, (n + {slide} - {size}) // {slide}), n // {slide})"  # negative: not beyond 0
    windows = f"SELECT *, unnest({numbers}) AS k FROM ({counted})"
    inside = f"n < k * {slide} + {size}" + ("" if node.partial else f" AND k * {slide} + {size} <= of_group")
    ts = f"CASE WHEN k * {slide} + {size} <= of_group THEN end_us ELSE {LAST_TIME_US} END"
    return _repeated(plan, node, rows, f"SELECT * FROM ({windows}) WHERE {inside}", ts, [("k", node.window), ("n", node.row)])


def _aligned_windows(plan: LogicalPlan, node: AlignedWindows, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of windows that are counted from the first row of a group on, and a query of their rows."""
    keys = [rows.columns[name] for name in node.key]
    by, size, slide = ("PARTITION BY " + ", ".join(keys) if keys else ""), node.size_us, node.slide_us
    first = f"SELECT *, min(ts) OVER ({by}) AS t0 FROM {rows.table}"
    numbers = f"generate_series(greatest(0, (ts - t0 - {size}) // {slide}), (ts - t0) // {slide})"
    windows = f"SELECT *, unnest({numbers}) AS k FROM ({first})"
    edges = f"t0 + k * {slide} AS start_us, t0 + k * {slide} + {size} AS end_us"
    ts = "end_us" if node.output_time == "end" else "start_us"
    return _repeated(plan, node, rows, f"SELECT *, {edges} FROM ({windows}) WHERE ts <= t0 + k * {slide} + {size}", ts, [])


def _views(plan: LogicalPlan, node: Views, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of views, and a query of their rows, whose times are multiples."""
    names, every = [name for name in plan.schema(node.input).types if name in rows.columns], node.every_us
    by = "PARTITION BY " + ", ".join(rows.columns[name] for name in node.key) if node.key else ""
    ends = f"lead(ts) OVER ({by} ORDER BY ts, id) AS following, max(ts) OVER () AS last FROM {rows.table}"
    numbers = f"generate_series(ts // {every}, coalesce(following // {every} - 1, last // {every}))"
    made = {name: f"c{i}" for i, name in enumerate([*names, node.as_of])}
    values = [*(rows.columns[name] for name in names), _instant(f"k * {every}", node.time_type)]
    shown = "".join(f", {value} AS {made[name]}" for name, value in zip([*names, node.as_of], values, strict=True))
    views = f"SELECT *, unnest({numbers}) AS k FROM (SELECT *, {ends})"
    return made, f"SELECT union_id(k, id) AS id, k * {every} AS ts{shown} FROM ({views})"


def _live_groups(plan: LogicalPlan, node: LiveGroups, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of groups of rows that are alive, and a query of their rows."""
    types, keys = plan.schema(node.input).types, [rows.columns[name] for name in node.key]
    groups = "".join(f"{key} AS g{i}, " for i, key in enumerate(keys))
    lives = f"SELECT *, {groups}{rows.columns[node.born]} AS born, least({rows.columns[node.dead]}, {LAST_TIME_US}) AS dead"
    lives = f"SELECT * FROM ({lives} FROM {rows.table}) WHERE born < dead"
    names = [f"g{i}" for i in range(len(keys))]
    mine = "".join(f"{name}, " for name in names)
    deaths = f"SELECT {mine}dead AS us FROM lives WHERE dead < {LAST_TIME_US}"
    events = f"SELECT {mine}born AS us FROM lives UNION {deaths}"
    instants = "SELECT * FROM events"
    if node.mode == "boundaries":
        last = " AND ".join(["true", *(f"events.{name} IS NOT DISTINCT FROM lives.{name}" for name in names)])
        until = f"if(dead < {LAST_TIME_US}, dead, (SELECT max(us) FROM events WHERE {last}) + {node.every_us})"
        instants = f"SELECT DISTINCT {mine}unnest(range(born, {until}, {node.every_us})) AS us FROM lives"
    of_group = " AND ".join(["true", *(f"i.{name} IS NOT DISTINCT FROM l.{name}" for name in names)])
    alive = f"FROM instants AS i LEFT JOIN lives AS l ON {of_group} AND l.born <= i.us AND i.us < l.dead"
    grouped = ", ".join([*(f"i.{name}" for name in names), "i.us"])
    calls = [_of_living(call, types, rows.columns) for call in node.calls]
    shown = [*node.key, node.as_of, *(call.name for call in node.calls)]
    made = {name: f"c{i}" for i, name in enumerate(shown)}
    values = [*(f"i.{name}" for name in names), "i.us", *calls]
    selected = ", ".join(f"{value} AS {name}" for value, name in zip(values, made.values(), strict=True))
    births = " HAVING count(l.born) > 0 AND count(l.born) FILTER (WHERE l.born < i.us) = 0" if node.mode == "births" else ""
    tables = f"WITH lives AS ({lives}), events AS ({events}), instants AS ({instants})"
    return made, f"{tables} SELECT hash({grouped}) AS id, i.us AS ts, {selected} {alive} GROUP BY {grouped}{births}"


def _of_living(call: AggregateCall, types: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """A call in DuckDB's SQL. NaN is neither the least nor the greatest value if there is another."""
    if call.column is None:
        return "count(l.born)"
    column, kind = f"l.{columns[call.column]}", types[call.column]
    if kind == "double":
        column = f"({column} + 0.0)"  # -0.0 is 0.0
    found = _called(call, kind, column, "", "", "")
    return (
        f"coalesce(max({column}) FILTER (WHERE NOT isnan({column})), {found})"
        if (call.function, kind) == ("max", "double")
        else found
    )


def _counted_join(plan: LogicalPlan, node: CountedJoin, rows: NodeTable) -> tuple[dict[str, str], str]:
    """The columns of a join whose windows count rows, and a query of its rows."""
    part, parts, never = rows.columns[node.part], range(len(node.columns)), 1 << 62
    streams = " ".join(f"WHEN {i} THEN {stream}" for i, stream in enumerate(node.streams))
    placed = f"SELECT *, row_number() OVER (ORDER BY ts, CASE {part} {streams} END, id, {part}) AS place FROM {rows.table}"
    tables = [f"placed AS ({placed})"]
    for i, (count, width) in enumerate(zip(node.counts, node.widths, strict=True)):
        until = f"coalesce(lead(place, {count}) OVER (ORDER BY place), {never})" if count else str(never)
        end = never if count else f"ts + {width}"
        tables.append(f"p{i} AS (SELECT *, {until} AS until, {end} AS end_us FROM placed WHERE {part} = {i})")
    home: dict[str, int] = {}
    tests = []
    for i, mine in enumerate(node.columns):
        shared = [name for name in mine if name in home]
        tests += [f"p{home[name]}.{rows.columns[name]} = p{i}.{rows.columns[name]}" for name in shared]
        home |= {name: i for name in mine if name not in home}
    places, untils, times, ends = ([f"p{i}.{name}" for i in parts] for name in ("place", "until", "ts", "end_us"))
    newest, first_end = f"greatest({', '.join(times)})", f"least({', '.join(ends)})"
    tests += [f"greatest({', '.join(places)}) < least({', '.join(untils)})", f"{newest} <= {first_end}"]
    names = [name for name in plan.schema(node.input).types if name in rows.columns and name != node.part]
    values = [f"p{home[name]}.{rows.columns[name]}" for name in names] + [_instant(newest, node.time_type), newest]
    made = {name: f"c{i}" for i, name in enumerate([*names, node.time, node.born])}
    shown = "".join(f", {value} AS {column}" for value, column in zip(values, made.values(), strict=True))
    row_id = "p0.id"
    for i in parts[1:]:
        row_id = f"pair_digest({row_id}, p{i}.id)"
    inputs = ", ".join(f"p{i}" for i in parts)
    return (
        made,
        f"WITH {', '.join(tables)} SELECT {row_id} AS id, {newest} AS ts{shown} FROM {inputs} WHERE {' AND '.join(tests)}",
    )


def _repeated(
    plan: LogicalPlan,
    node: TupleWindows | AlignedWindows,
    rows: NodeTable,
    windows: str,
    ts: str,
    numbers: list[tuple[str, str]],
) -> tuple[dict[str, str], str]:
    """windows: a query of the rows, once for each window, k. ts: time of what comes out. numbers: columns, and their names."""
    names = [name for name in plan.schema(node.input).types if name in rows.columns]
    values = [rows.columns[name] for name in names] + [_instant(us, node.time_type) for us in ("start_us", "end_us")]
    made = {name: f"c{i}" for i, name in enumerate([*names, node.start, node.end, *(name for _, name in numbers)])}
    values += [column for column, _ in numbers]
    shown = "".join(f", {value} AS {name}" for name, value in zip(made.values(), values, strict=True))
    if isinstance(node, TupleWindows):
        of = "PARTITION BY " + ", ".join(["k", *(rows.columns[name] for name in node.key)])
        windows = f"SELECT *, min(ts) OVER ({of}) AS start_us, max(ts) OVER ({of}) AS end_us FROM ({windows})"
    return made, f"SELECT union_id(k, id) AS id, {ts} AS ts{shown} FROM ({windows})"


def _union(plan: LogicalPlan, union: Union, found: Mapping[str, NodeTable]) -> tuple[dict[str, str], str]:
    """The columns that all inputs of a union have, and a query of its rows."""
    inputs = [found[name] for name in union.inputs]
    names = [name for name in plan.schema(union.name).types if all(name in rows.columns for rows in inputs)]
    parts = []
    for i, rows in enumerate(inputs):
        values = "".join(f", {rows.columns[name]} AS c{j}" for j, name in enumerate(names))
        own = "id" if union.keeps_ids else f"union_id({i}, id) AS id"
        parts.append(f"SELECT {own}, ts{values} FROM {rows.table}")
    return {name: f"c{j}" for j, name in enumerate(names)}, " UNION ALL ".join(parts)
