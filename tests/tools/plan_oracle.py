"""The oracle of plans: the rows of every node of a logical plan by comparing every pair.

What: `Row`, `evaluate`, `Answer`, `emitted` (which rows are out at a cut of the input); `row_hash`, `words_of`.
Why: plans of several stages are compared with this module; it has no stages, no engine, and its own arithmetic of ids.
Stays out: residual predicates and count windows; the definition of a match (`swjoin.core.join_semantics`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from swjoin.core.ids import END_OF_TIME_US, LAST_TIME_US
from swjoin.core.join_semantics import JOIN_KINDS
from swjoin.core.time_windows import TimeWindows
from swjoin.plan.aggregates import Aggregate, AggregateCall
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.kept_rows import AlignedWindows, Keyed, Ranked, Sessions, TupleWindows, Views
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
    Schema,
    Source,
    Spread,
    Union,
    Within,
    join_columns,
)
from swjoin.plan.lookups import Lookup
from swjoin.plan.map_batches import MapBatches
from tests.tools.plan_expressions import function_of, merged

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
MISSING = MASK

Rule = Callable[[Node, Sequence[int]], int]


class Row(NamedTuple):
    """values: in the order of the schema's columns. parents: of a join's row, ids of the left and the right row, None for none.
    partners: of a row of a semi join, ids of the right rows that it matches."""

    id: int
    ts: int
    values: tuple[Any, ...]
    parents: tuple[int | None, int | None] = (None, None)
    partners: tuple[int, ...] = ()


class Answer(NamedTuple):
    """Count of a node's rows, and the sum of their ids mod 2^64."""

    row_count: int
    digest: int

    @staticmethod
    def of(rows: Sequence[Row]) -> Answer:
        return Answer(len(rows), sum(row.id for row in rows) & MASK)


def mix64(value: int) -> int:
    """The 64-bit finaliser of MurmurHash3 on Python's integers."""
    h = value & MASK
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCD & MASK
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
    return h ^ (h >> 33)


def pair_id(left: int, right: int) -> int:
    return mix64(left * GOLDEN + mix64(right * GOLDEN + GOLDEN))


def row_hash(values: Sequence[Sequence[int]]) -> int:
    """The hash of a row by the words of each column's value, as `swjoin.core.row_digests` defines it."""
    row = GOLDEN
    for words in reversed(values):
        h = GOLDEN
        for word in words:
            h = mix64((word & MASK) * GOLDEN + h)
        row = mix64(h * GOLDEN + row)
    return row


def words_of(value: Any) -> list[int]:
    """The words of null, an integer, a time in microseconds, a double, text or binary."""
    if value is None:
        return []
    if isinstance(value, float):
        plain = math.nan if math.isnan(value) else value + 0.0
        return [struct.unpack("<Q", struct.pack("<d", plain))[0]]
    if isinstance(value, int):
        return [value]
    data = value.encode() if isinstance(value, str) else value
    return [*(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)), len(data)]


def near_rows(node: Within, plan: LogicalPlan, found: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The pairs of a join whose times are so near."""
    join = plan.node(node.input)
    assert isinstance(join, IntervalJoin)
    left, right = ({row.id: row.ts for row in found[name]} for name in join.inputs)
    times = [(left[row.parents[0] or 0], right[row.parents[1] or 0]) for row in found[join.name]]
    return [row for row, (a, b) in zip(found[join.name], times, strict=True) if node.lower_us <= b - a <= node.upper_us]


def in_period(node: Period, time_us: int) -> bool:
    return time_us < node.at_us if node.ends else time_us >= node.at_us


def union_rows(index: int, rows: Sequence[Row], *, keeps_ids: bool = False) -> list[Row]:
    """Rows of the input of this index as they come out of a union."""
    if keeps_ids:
        return [Row(row.id, row.ts, row.values) for row in rows]
    return [Row(mix64(index * GOLDEN + row.id), row.ts, row.values) for row in rows]


def filtered_rows(node: Filter, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """The rows that satisfy a condition."""
    name, holds = function_of(node.condition)
    at = list(schema.types).index(name)
    return [row for row in rows if holds(row.values[at]) is True]


def projected_rows(node: Project, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """The rows with computed columns."""
    read = [function_of(text) for _, text in node.columns]
    at = [list(schema.types).index(name) for name, _ in read]
    return [Row(row.id, row.ts, tuple(f(row.values[i]) for i, (_, f) in zip(at, read, strict=True))) for row in rows]


def mapped_rows(node: MapBatches, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """The rows with what one of the two functions of random plans computes."""
    types = list(schema.types.items())
    if node.function.endswith("merged_values"):
        whole = [merged if re.fullmatch("u?int.*|string", kind) else (lambda value: value) for _, kind in types]
        return [Row(row.id, row.ts, tuple(f(v) for f, v in zip(whole, row.values, strict=True))) for row in rows]
    kept = [at for at, (_, kind) in enumerate(types) if not kind.startswith("timestamp")]
    return [Row(row.id, row.ts, (*(row.values[at] for at in kept), row.values.count(None))) for row in rows]


def copied_rows(node: Copies, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """The rows once or twice, by two of their columns."""
    names, out = list(schema.types), []
    first, second = names.index(node.first), names.index(node.second)
    for row in rows:
        rest = [value for at, value in enumerate(row.values) if at not in (first, second)]
        pair = row.values[first], row.values[second]
        one = None in pair or pair[0] >> node.cell_bits == pair[1] >> node.cell_bits
        for value in pair[:1] if one else pair:
            out.append(row._replace(values=(*rest, value)))
    return out


def looked_up_rows(node: Lookup, schemas: Sequence[Schema], stream: Sequence[Row], table: Sequence[Row]) -> list[Row]:
    """Rows of a stream with those of a table that match. parents: of the row of the stream, and of the table. Keys are columns,
    and the condition, if there is one, is of two integer columns: the stream's is less than the table's."""
    places = [list(schema.types) for schema in schemas]
    keys = [[places[side].index(pair[side].strip('"')) for pair in node.keys] for side in (0, 1)]
    less = [] if node.where is None else [name.strip('"') for name in node.where.split(" < ")]
    out = []
    for row in stream:
        mine, found = [row.values[at] for at in keys[0]], []
        for other in table:
            equal = None not in mine and mine == [other.values[at] for at in keys[1]]
            if equal and less:
                one, two = row.values[places[0].index(less[0])], other.values[places[1].index(less[1])]
                equal = one is not None and two is not None and one < two
            if equal:
                found.append(other)
        alone = {"left": not found, "semi": bool(found), "anti": not found}.get(node.how, False)
        for other in found if node.how in ("inner", "left") else []:
            out.append(Row(pair_id(row.id, other.id), row.ts, (*row.values, *other.values), (row.id, other.id)))
        if alone:
            nothing = [None] * (len(places[1]) if node.how == "left" else 0)
            out.append(Row(pair_id(row.id, MISSING), row.ts, (*row.values, *nothing), (row.id, None)))
    return out


def aggregated_rows(node: Aggregate, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows of an aggregate. parents: of its window, start and end."""
    names, out = list(schema.types), []
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        for start in _starts(node.windows, row.ts):
            groups.setdefault((start, *(row.values[names.index(name)] for name in node.key)), []).append(row)
    for (start, *key), mine in groups.items():
        end = start + node.windows.size_us
        ts = {"last": end - 1, "start": start, "end": end}[node.output_time]
        digest = row_hash([words_of(value) for value in (*key, start)])
        if node.running:  # of all its rows so far
            mine = [row for row in rows if row.ts < end and [row.values[names.index(name)] for name in node.key] == key]
        results = [_called(call, names, mine, node.order) for call in node.calls]
        out.append(Row(digest, ts, (*key, start, end, *results), (start, end)))
    return out


def _starts(windows: TimeWindows, ts: int) -> list[int]:
    """Starts of the windows that have this time."""
    first = (ts - windows.origin_us - windows.size_us) // windows.slide_us + 1
    numbers = range(first, (ts - windows.origin_us) // windows.slide_us + 1)
    return [windows.origin_us + number * windows.slide_us for number in numbers]


def _by(row: Row, order: Sequence[tuple[str, bool, bool]], names: Sequence[str]) -> tuple[Any, ...]:
    """What a row is sorted by: of each column its null, then its value; last its id."""
    found: list[Any] = []
    for column, descending, nulls_first in order:
        value = row.values[names.index(column)]
        plain = 0 if value is None else value
        if isinstance(plain, str):
            plain = tuple(-byte - 1 if descending else byte for byte in plain.encode()) + ((1,) if descending else ())
        elif descending:
            plain = -plain
        found += [(value is None) != nulls_first, plain]
    return (*found, row.id)


def ranked_rows(node: Ranked, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows of a top-n, window by window. parents: of its window, start and end."""
    names, windows, out = list(schema.types), node.windows, []
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        for start in _starts(windows, row.ts):
            groups.setdefault((start, *(row.values[names.index(name)] for name in node.key)), []).append(row)
    for (start, *_), mine in groups.items():
        end = start + windows.size_us
        ts = {"last": end - 1, "start": start, "end": end}[node.output_time]
        edges = [us for us, name in ((start, node.start), (end, node.end)) if name]
        ordered = sorted(mine, key=lambda row: _by(row, node.order, names))
        for i, row in enumerate(ordered[: node.most]):
            out.append(Row(mix64(row.id + start * GOLDEN), ts, (*row.values, *edges, i + 1), (start, end)))
    return out


def session_rows(node: Sessions, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows with their sessions. parents: of each one's session, start and end."""
    out = []
    for mine in _by_key(node.key, schema, rows):
        sessions: list[list[Row]] = []
        for row in sorted(mine, key=lambda row: row.ts):
            if sessions and row.ts - sessions[-1][-1].ts < node.gap_us:
                sessions[-1].append(row)
            else:
                sessions.append([row])
        for session in sessions:
            start, end = session[0].ts, session[-1].ts + node.gap_us
            for row in session:
                ts = end if node.output_time == "end" else end - 1
                out.append(Row(row.id, ts, (*row.values, start, end), (start, end)))
    return out


def tuple_window_rows(node: TupleWindows, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows with windows of tuples. parents: the first one's time, and the time by which the window is full."""
    out = []
    for mine in _by_key(node.key, schema, rows):
        ordered = sorted(mine, key=lambda row: (row.ts, row.id))
        for number in range(len(ordered)):
            window = list(enumerate(ordered))[number * node.slide : number * node.slide + node.size]
            full = len(window) == node.size
            if not window or not (full or node.partial):
                continue
            start, end = window[0][1].ts, window[-1][1].ts
            ts, until = (end, end + 1) if full else (LAST_TIME_US, END_OF_TIME_US)
            for i, row in window:
                out.append(Row(mix64(row.id + number * GOLDEN), ts, (*row.values, start, end, number, i), (start, until)))
    return out


def aligned_window_rows(node: AlignedWindows, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows with windows that are counted from their group's first row on. parents: of each one's window, start and end."""
    out = []
    for mine in _by_key(node.key, schema, rows):
        first = min(row.ts for row in mine)
        for row in mine:
            since = row.ts - first
            for number in range(max(0, (since - node.size_us) // node.slide_us), since // node.slide_us + 1):
                start = first + number * node.slide_us
                end = start + node.size_us
                if row.ts <= end:
                    ts = end if node.output_time == "end" else start
                    out.append(Row(mix64(row.id + number * GOLDEN), ts, (*row.values, start, end), (start, end + 1)))
    return out


def view_rows(node: Views, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows of views. parents: the view's time, and the time by which a row at or after it is final."""
    times, every, out = sorted(row.ts for row in rows), node.every_us, []
    for number in range(-(-times[0] // every), times[-1] // every + 1) if times else ():
        as_of = number * every
        until = next(ts for ts in times if ts >= as_of) + 1
        for mine in _by_key(node.key, schema, [row for row in rows if row.ts <= as_of]):
            row = max(mine, key=lambda row: (row.ts, row.id))
            out.append(Row(mix64(row.id + number * GOLDEN), as_of, (*row.values, as_of), (as_of, until)))
    return out


def live_rows(node: LiveGroups, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows of groups of rows that are alive. parents: the instant, and the time by which the row is out."""
    names, out = list(schema.types), []
    at = names.index(node.born), names.index(node.dead)
    for mine in _by_key(node.key, schema, rows):
        lives = [(row.values[at[0]], row.values[at[1]], row) for row in mine if row.values[at[0]] < row.values[at[1]]]
        ends = [dead for _, dead, _ in lives if dead < LAST_TIME_US]
        times = sorted({*(born for born, _, _ in lives), *ends})
        for_ever = min((born for born, dead, _ in lives if dead >= LAST_TIME_US), default=END_OF_TIME_US)
        if node.mode == "boundaries" and times:
            instants = [us for us in range(times[0], times[-1] + 1) if us % node.every_us == 0]
        else:
            instants = times
        for us in instants:
            alive = [row for born, dead, row in lives if born <= us < dead]
            before = [row for born, dead, row in lives if born < us < dead]
            if (node.mode == "boundaries" and not alive) or (node.mode == "births" and (before or not alive)):
                continue
            until = us if us <= for_ever or node.mode != "boundaries" else next(time for time in times if time >= us)
            key = [mine[0].values[names.index(name)] for name in node.key]
            results = [_of_living(call, names, alive) for call in node.calls]
            out.append(Row(row_hash([words_of(v) for v in (*key, us)]), us, (*key, us, *results), (us, until + 1)))
    return out


def counted_rows(node: CountedJoin, schema: Schema, rows: Sequence[Row]) -> list[Row]:
    """Rows of a join whose windows count rows: any that agree, of which none has left its window when the last one comes.
    parents: the times of the first and of the last one."""
    names = list(schema.types)
    part_of = names.index(node.part)
    ordered = sorted(rows, key=lambda row: (row.ts, node.streams[row.values[part_of]], row.id, row.values[part_of]))
    windows: list[list[Row]] = [[] for _ in node.columns]
    out = []
    for row in ordered:
        mine = row.values[part_of]
        for part, (count, width) in enumerate(zip(node.counts, node.widths, strict=True)):
            if part == mine:
                windows[part] = [*windows[part], row][-count if count else 0 :]
            if not count:
                windows[part] = [other for other in windows[part] if other.ts + width >= row.ts]
        sides = [[row] if part == mine else window for part, window in enumerate(windows)]
        for found in product(*sides):
            values: dict[str, list[Any]] = {name: [] for name in names}
            for columns, each in zip(node.columns, found, strict=True):
                for name in columns:
                    values[name].append(each.values[names.index(name)])
            if all(None not in values[name] and len(set(values[name])) == 1 for name in node.shared):
                shown = tuple((values[name] or [None])[0] for name in names if name != node.part)
                first = min(each.ts for each in found)
                row_id = reduce(pair_id, [each.id for each in found])
                out.append(Row(row_id, row.ts, (*shown, row.ts, row.ts), (first, row.ts + 1)))
    return out


def _of_living(call: AggregateCall, names: Sequence[str], rows: Sequence[Row]) -> Any:
    """A call of rows, whose doubles may be any: sums are rounded once, 0.0 is -0.0, NaN is less than all for max, and greater
    than all for min."""
    if call.column is None:
        return len(rows)
    values = [value for row in rows if (value := row.values[names.index(call.column)]) is not None]
    values = [value + 0.0 if isinstance(value, float) else value for value in values]
    if call.distinct:
        nothing = [value for value in values if value != value][:1]
        values = [*{value for value in values if value == value}, *nothing]
    if call.function == "count" or not values:
        return len(values) if call.function == "count" else None
    if call.function == "sum":
        return exact_sum(values) if isinstance(values[0], float) else sum(values)
    known = [value for value in values if value == value]
    return {"min": min, "max": max}[call.function](known) if known else math.nan


def exact_sum(values: Sequence[float]) -> float:
    """The sum of doubles, rounded once."""
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        return math.nan
    found = [value for value in values if math.isinf(value)]
    total = sum(map(Fraction, () if found else values), Fraction(0))
    try:
        return found[0] if found else float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _by_key(key: Sequence[str], schema: Schema, rows: Sequence[Row]) -> list[list[Row]]:
    names = list(schema.types)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.values[names.index(name)] for name in key), []).append(row)
    return list(groups.values())


def _called(call: AggregateCall, names: Sequence[str], rows: Sequence[Row], order: str = "") -> Any:
    function, column = call.function, call.column
    if column is None:
        return len(rows)

    def earlier(row: Row) -> tuple[Any, ...]:
        value = row.values[names.index(order)] if order else 0
        return value is None, value or 0, row.ts, row.id

    found = [row for row in sorted(rows, key=earlier) if row.values[names.index(column)] is not None]
    values = [row.values[names.index(column)] for row in found]
    if call.distinct:
        values = list(dict.fromkeys(values))
    if function.startswith("arg_") and call.by is not None:
        at = names.index(call.by)
        known = [row for row in found if row.values[at] is not None]
        best = sorted(known, key=lambda row: row.values[at], reverse=function == "arg_max")[call.place - 1 :]
        return best[0].values[names.index(column)] if best else None
    if function in ("first", "last"):
        return values[0 if function == "first" else -1] if values else None
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in ("sum", "avg"):
        total = math.fsum(values) if isinstance(values[0], float) else sum(values)
        return total / len(values) if function == "avg" else total
    best = sorted(values, reverse=function == "max")[call.place - 1 :]
    return best[0] if best else None


class TooManyRowsError(Exception):
    """A node has more rows than are wanted."""


def join_rows(
    join: IntervalJoin, schemas: Sequence[Schema], lefts: Sequence[Row], rights: Sequence[Row], most: int | None = None
) -> list[Row]:
    """Rows of a join of these rows. A null in any key column matches nothing. TooManyRowsError for more than `most` pairs."""
    bounds, kind = join.semantics.bounds, JOIN_KINDS[join.semantics.how]
    assert join.semantics.where is None
    assert not bounds.count_windows
    positions = [[list(s.types).index(name) for name in key] for s, key in zip(schemas, join.keys, strict=True)]

    def key(side: int, row: Row) -> tuple[Any, ...]:
        return tuple(row.values[at] for at in positions[side])

    def made(left: Row | None, right: Row | None, partners: Sequence[int] = ()) -> Row:
        times = [row.ts for row in (left, right) if row is not None]
        ts = times[0] if join.output_time == "left" else {"max": max, "min": min}[join.output_time](times)
        values = []
        for _, _, side, name in join_columns(join, *schemas):
            source, column = (left, right)[side], name
            if source is None and side == 0 and right is not None and name in join.left_key:
                side, source, column = 1, right, join.right_key[join.left_key.index(name)]
            values.append(None if source is None else source.values[list(schemas[side].types).index(column)])
        parents = None if left is None else left.id, None if right is None else right.id
        digest = pair_id(*(MISSING if parent is None else parent for parent in parents))
        return Row(digest, ts, tuple(values), parents, tuple(partners))

    def meets(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
        if join.band is None or None in theirs:
            return mine == theirs
        narrow, wide = (mine[0], theirs[0]) if join.band.wide else (theirs[0], mine[0])
        if narrow >> join.band.cell_bits != wide >> join.band.cell_bits:
            return False
        width = 2 * join.band.width
        return bool(wide - 1 - width <= narrow < wide if wide % 2 else wide <= narrow <= wide + width)

    matches: list[tuple[int, int]] = []
    keys = [key(1, right) for right in rights]
    for i, left in enumerate(lefts):
        mine = key(0, left)
        if None not in mine:
            near = ((j, right.ts - left.ts) for j, right in enumerate(rights) if meets(mine, keys[j]))
            matches += [(i, j) for j, difference in near if bounds.lower_us <= difference <= bounds.upper_us]
        if (as_of := join.semantics.as_of) is not None:
            ours = [j for at, j in matches if at == i]
            matches = [pair for pair in matches if pair[0] != i]
            matches += [(i, j) for j in _chosen(as_of.match, left, rights, ours)]
        if most is not None and len(matches) > most and kind.pairs:
            raise TooManyRowsError(f"{join.name}: more than {most} pairs")
    out = [made(lefts[i], rights[j]) for i, j in matches] if kind.pairs else []
    matched = {i for i, _ in matches}, {j for _, j in matches}
    partners: dict[int, list[int]] = {i: [] for i in matched[0]}
    for i, j in matches:
        partners[i].append(rights[j].id)
    out += [made(lefts[i], None, partners[i]) for i in sorted(matched[0])] if kind.first else []
    out += [made(row, None) for i, row in enumerate(lefts) if i not in matched[0]] if kind.unmatched[0] else []
    out += [made(None, row) for j, row in enumerate(rights) if j not in matched[1]] if kind.unmatched[1] else []
    return out


def _chosen(match: str, left: Row, rights: Sequence[Row], candidates: Sequence[int]) -> list[int]:
    """Of the right rows that match a left one, the one that an as-of join has."""
    before = max((j for j in candidates if rights[j].ts <= left.ts), key=lambda j: (rights[j].ts, rights[j].id), default=None)
    later = (j for j in candidates if rights[j].ts > left.ts or (match == "first" and rights[j].ts == left.ts))
    after = min(later, key=lambda j: (rights[j].ts, rights[j].id), default=None)
    if match == "nearest" and before is not None and after is not None:
        before, after = (None, after) if rights[after].ts - left.ts < left.ts - rights[before].ts else (before, None)
    found = {"last": before, "first": after, "nearest": after if before is None else before}[match]
    return [] if found is None else [found]


def evaluate(plan: LogicalPlan, sources: Mapping[str, Sequence[Row]], most: int | None = None) -> dict[str, list[Row]]:
    """The rows of every node. TooManyRowsError as soon as one has more than `most`."""
    found: dict[str, list[Row]] = {}
    for node in plan.ordered:
        match node:
            case Source():
                found[node.name] = list(sources[node.name])
            case Filter():
                found[node.name] = filtered_rows(node, plan.schema(node.input), found[node.input])
            case Project():
                found[node.name] = projected_rows(node, plan.schema(node.input), found[node.input])
            case MapBatches():
                found[node.name] = mapped_rows(node, plan.schema(node.input), found[node.input])
            case IntervalJoin():
                schemas = [plan.schema(name) for name in node.inputs]
                found[node.name] = join_rows(node, schemas, found[node.left], found[node.right], most)
            case Lookup():
                found[node.name] = looked_up_rows(node, [plan.schema(n) for n in node.inputs], *(found[n] for n in node.inputs))
            case Aggregate():
                found[node.name] = aggregated_rows(node, plan.schema(node.input), found[node.input])
            case Ranked():
                found[node.name] = ranked_rows(node, plan.schema(node.input), found[node.input])
            case Sessions():
                found[node.name] = session_rows(node, plan.schema(node.input), found[node.input])
            case TupleWindows():
                found[node.name] = tuple_window_rows(node, plan.schema(node.input), found[node.input])
            case AlignedWindows():
                found[node.name] = aligned_window_rows(node, plan.schema(node.input), found[node.input])
            case Views():
                found[node.name] = view_rows(node, plan.schema(node.input), found[node.input])
            case LiveGroups():
                found[node.name] = live_rows(node, plan.schema(node.input), found[node.input])
            case CountedJoin():
                found[node.name] = counted_rows(node, plan.schema(node.input), found[node.input])
            case Spread():  # any two rows meet
                found[node.name] = found[node.input]
            case Copies():
                found[node.name] = copied_rows(node, plan.schema(node.input), found[node.input])
            case Period():
                found[node.name] = [row for row in found[node.input] if in_period(node, row.ts)]
            case Within():
                found[node.name] = near_rows(node, plan, found)
            case Union():
                found[node.name] = [
                    row for i, name in enumerate(node.inputs) for row in union_rows(i, found[name], keeps_ids=node.keeps_ids)
                ]
            case Result():
                found[node.name] = found[node.input]
        if most is not None and len(found[node.name]) > most:
            raise TooManyRowsError(f"{node.name}: {len(found[node.name])} rows")
    return found


def emitted(
    plan: LogicalPlan,
    rows: Mapping[str, Sequence[Row]],
    arrived: Mapping[str, set[int]],
    watermarks: Mapping[str, int],
    rule: Rule,
) -> tuple[dict[str, set[int]], dict[str, int]]:
    """Ids of every node's rows that are out at a cut of the input, and every node's watermark by a rule.

    rows: by `evaluate`, of the whole input. arrived, watermarks: ids of each source's rows until the cut, and its watermark. A
    pair is out when both rows are; a row without a match when the other input's watermark excludes further partners; a row of
    an aggregate, a top-n or sessions when the watermark has passed its window.
    """
    out: dict[str, set[int]] = {}
    promised: dict[str, int] = {}
    for node in plan.ordered:
        if isinstance(node, Source):
            out[node.name], promised[node.name] = arrived[node.name], rule(node, [watermarks[node.name]])
            continue
        inputs = [promised[name] for name in node.inputs]
        promised[node.name] = rule(node, inputs)
        if isinstance(node, Lookup):
            out[node.name] = {row.id for row in rows[node.name] if row.parents[0] in out[node.input]}
        elif isinstance(node, Result | Project | MapBatches | Spread | Copies):
            out[node.name] = out[node.input]
        elif isinstance(node, Filter | Within | Period):
            out[node.name] = out[node.input] & {row.id for row in rows[node.name]}
        elif isinstance(node, Keyed):
            out[node.name] = {row.id for row in rows[node.name] if (row.parents[1] or 0) <= inputs[0]}
        elif isinstance(node, Union) and node.keeps_ids:
            out[node.name] = set().union(*(out[name] for name in node.inputs))
        elif isinstance(node, Union):
            out[node.name] = {mix64(i * GOLDEN + row) for i, name in enumerate(node.inputs) for row in out[name]}
        else:
            ids = out[node.left], out[node.right]
            as_of, times = node.semantics.as_of, {row.id: row.ts for row in rows[node.left]}
            if as_of is None:
                out[node.name] = {row.id for row in rows[node.name] if _is_out(node, row, ids, inputs)}
            else:  # at the latest when no better match can come
                below_us = as_of.front_us((inputs[0], inputs[1])) - as_of.candidates.upper_us
                passed = {row.id for row in rows[node.name] if times[row.parents[0] or 0] < below_us}
                out[node.name] = {row.id for row in rows[node.name] if row.id in passed and _is_in(row, ids)}
    return out, promised


def _is_in(row: Row, out: tuple[set[int], set[int]]) -> bool:
    left, right = row.parents
    return left in out[0] and (right is None or right in out[1])


def _is_out(join: IntervalJoin, row: Row, out: tuple[set[int], set[int]], inputs: Sequence[int]) -> bool:
    left, right = row.parents
    bounds = join.semantics.bounds
    if left is not None and right is not None:
        return left in out[0] and right in out[1]
    if left is None:
        return right in out[1] and inputs[0] > row.ts - bounds.lower_us
    if row.partners:
        return left in out[0] and any(partner in out[1] for partner in row.partners)
    return left in out[0] and inputs[1] > row.ts + bounds.upper_us
