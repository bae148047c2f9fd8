"""The rows of a join, and digests, in DuckDB's SQL.

What: `define_macros(db)`; `rows_of_join(db, ...)`, a query over the tables left_rows and right_rows; `count_and_digest`.
Why: a join of two streams and every join of a plan are recomputed by the same SQL.
Stays out: reading the input and leaving rows out (`duckdb.verify`), plans (`duckdb.plan_rows`).

The tables: rid, a number of the row of its own; id, ts, k0, k1, ... (the key columns, which may be null), and any others. Pairs
are never kept: an outer join finds them several times. The join has a second equal column, the time bucket of the window's
width, so that DuckDB hashes instead of comparing all pairs of a hot key; the exact bounds are checked on every pair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from swjoin.config.sections import QueryConfig
from swjoin.core.batch import LEFT, STREAM_NAMES
from swjoin.core.join_semantics import AsOf

NONE = "18446744073709551615::UBIGINT"  # the id of a missing side
# mix64 and the digest of a pair, in integers of 128 bits: no product of two with 64 bits overflows
_MACROS = (
    "low64(x) AS x & 18446744073709551615::UHUGEINT",
    "mixed(x, factor) AS low64(xor(x, x >> 33) * factor)",
    f"mix64(x) AS xor(mixed(mixed(x, {0xFF51AFD7ED558CCD}::UHUGEINT), {0xC4CEB9FE1A85EC53}::UHUGEINT), "
    f"mixed(mixed(x, {0xFF51AFD7ED558CCD}::UHUGEINT), {0xC4CEB9FE1A85EC53}::UHUGEINT) >> 33)",
    f"weighed(id) AS id::UHUGEINT * {0x9E3779B97F4A7C15}::UHUGEINT",
    f"pair_digest(l, r) AS mix64(low64(weighed(l) + mix64(low64(weighed(r) + {0x9E3779B97F4A7C15}::UHUGEINT))))::UBIGINT",
    "union_id(input, id) AS mix64(low64(weighed(input) + id::UHUGEINT))::UBIGINT",
)


class Selected(NamedTuple):
    """What is selected of a join's rows: of pairs, whose columns have the prefixes l_ and r_; of left and of right rows that
    come out alone."""

    pairs: str
    left: str
    right: str


IDS = Selected("l_id AS l, r_id AS r", f"id AS l, {NONE} AS r", f"{NONE} AS l, id AS r")


def define_macros(db: Any) -> None:
    for macro in _MACROS:
        db.execute(f"CREATE MACRO {macro}")


def _near(probing: str, mine: str, stored: str, theirs: str, bounds: tuple[int, int]) -> str:
    """Pairs of rows of two streams, `l` and `r`, with equal keys and bounds[0] <= theirs - mine <= bounds[1]: a query."""
    lower, upper = bounds
    width = max(1, upper - lower + 1)

    def bucket(value: str) -> str:
        return f"{value} - {value} % {width} - CASE WHEN {value} % {width} < 0 THEN {width} ELSE 0 END"

    # [mine + lower, mine + upper] is `width` long, so it touches at most two buckets of that width.
    first = bucket(f"({probing}_{mine} + {lower})")
    return (
        f"SELECT * FROM (SELECT *, unnest([{first}, {first} + {width}]) AS p_bucket FROM {probing}_keyed) "
        f"JOIN (SELECT *, {bucket(f'{stored}_{theirs}')} AS s_bucket FROM {stored}_keyed) "
        f"ON p_bucket = s_bucket AND {{keys}} WHERE {stored}_{theirs} - {probing}_{mine} BETWEEN {lower} AND {upper}"
    )


def columns_of(db: Any, table: str) -> list[str]:
    return [row[0] for row in db.execute(f"DESCRIBE {table}").fetchall()]


def key_columns(db: Any, table: str) -> list[str]:
    return [column for column in columns_of(db, table) if column.startswith("k")]


def rows_of_join(
    db: Any, query: QueryConfig, where: str | None, selected: Selected = IDS, measured_from_us: int | None = None
) -> str:
    """A query of all rows of the join; it stays valid until the next call. where: the residual predicate in SQL.
    measured_from_us: only pairs whose later tuple is not before."""
    keys = key_columns(db, f"{STREAM_NAMES[LEFT]}_rows")
    for short, stream in zip("lr", STREAM_NAMES, strict=True):
        named = ", ".join(f"{column} AS {short}_{column}" for column in columns_of(db, f"{stream}_rows"))
        keyed = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        db.execute(f"CREATE OR REPLACE VIEW {short}_keyed AS SELECT {named} FROM {stream}_rows WHERE {keyed}")
    bounds = query.bounds
    if query.last is None:
        pairs = _near("l", "ts", "r", "ts", (bounds.lower_us, bounds.upper_us))
    else:  # of every pair one tuple comes first, and must be among the last of its stream before the other
        last_left, last_right = query.last
        found = _near("r", "passed", "l", "own", (1 - last_left, 0)), _near("l", "passed", "r", "own", (1 - last_right, 0))
        pairs = " UNION ALL BY NAME ".join(found)
    pairs = pairs.format(keys=" AND ".join(f"l_{key} = r_{key}" for key in keys))
    tests = [] if measured_from_us is None else [f"greatest(l_ts, r_ts) >= {measured_from_us}"]
    tests += [] if where is None else [where]
    chosen = "" if query.as_of is None else f" QUALIFY {_is_chosen(query.as_of)}"
    db.execute(f"CREATE OR REPLACE VIEW pairs AS SELECT * FROM ({pairs}) WHERE {' AND '.join(tests) or 'true'}{chosen}")
    kind = query.kind
    parts = [f"SELECT {selected.pairs} FROM pairs"] if kind.pairs else []
    for side, (short, stream) in enumerate(zip("lr", STREAM_NAMES, strict=True)):
        matched, alone = f"SELECT DISTINCT {short}_rid AS rid FROM pairs", selected[1 + side]
        if kind.first and side == LEFT:
            parts.append(f"SELECT {alone} FROM left_rows SEMI JOIN ({matched}) USING (rid)")
        if kind.unmatched[side]:
            parts.append(f"SELECT {alone} FROM {stream}_rows ANTI JOIN ({matched}) USING (rid) WHERE ts IS NOT NULL")
    return " UNION ALL ".join(parts)


def _is_chosen(as_of: AsOf) -> str:
    """Whether a pair is the one that an as-of join has of its left row."""
    before, own = "r_ts <= l_ts", "CASE WHEN r_ts <= l_ts THEN r_id END DESC NULLS LAST, r_id"
    order = {"last": "r_ts DESC", "first": "r_ts", "nearest": "abs(r_ts - l_ts), r_ts"}[as_of.match]
    wanted = {"last": before, "first": "r_ts >= l_ts", "nearest": "true"}[as_of.match]
    own = "r_id" if as_of.match == "first" else own
    return f"{wanted} AND row_number() OVER (PARTITION BY l_rid, {wanted} ORDER BY {order}, {own}) = 1"


def count_and_digest(db: Any, view: str, *, of_pairs: bool = True) -> tuple[int, int]:
    """Of the rows l, r (ids) of a view: how many they are, and the sum of their digests. of_pairs: otherwise a row is no pair,
    and its id l is its digest."""
    digest = "pair_digest(l, r)" if of_pairs else "l"
    count, total = db.execute(f"SELECT count(*), sum({digest}) FROM {view}").fetchone()
    return int(count), int(total or 0) % (1 << 64)
