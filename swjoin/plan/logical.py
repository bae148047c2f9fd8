"""Logical plans: sources, filters, projections, interval joins, unions and results as nodes of a graph without cycles.

What: `Source`, `Filter`, `Project`, `IntervalJoin`, `Within`, `Period`, `Spread`, `Copies`, `Union`, `Result`; `LogicalPlan`,
of these, of `Aggregate`s (`plan.aggregates`), `Ranked` and `Sessions` (`plan.kept_rows`), `LiveGroups` (`plan.live_groups`),
`CountedJoin`s (`plan.counted_joins`), `Lookup`s (`plan.lookups`) and `MapBatches` (`plan.map_batches`), which is checked when
it is made; the `Schema` of every node.
Why: front ends make plans, and stages, explanations, runtimes and forecasts read them, without depending on each other.
Stays out: watermarks (`plan.watermarks`), stages (`plan.stages`), meaning and evaluation of expressions (`expressions`).

A node names its inputs. Row ids: a source's rows have their own, which filters, projections, functions of batches and copies
keep, as they keep times; a union's `union_row_ids`; a row of a join or a lookup has the digest of the pair of its inputs' ids
(`core.hashing.pair_hash`), MISSING_ID for a missing side.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from swjoin.config.sections import QueryConfig, check_key
from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, U64, TupleBatch
from swjoin.core.errors import UserError, setting
from swjoin.core.join_semantics import mix64
from swjoin.core.kept_columns import OrderKey
from swjoin.core.units import format_duration
from swjoin.plan.aggregates import Aggregate, aggregate_types
from swjoin.plan.bound import is_column, type_of
from swjoin.plan.counted_joins import CountedJoin, counted_types
from swjoin.plan.kept_rows import Keyed, Ranked, kept_types
from swjoin.plan.live_groups import LiveGroups, live_types
from swjoin.plan.lookups import Lookup, lookup_columns
from swjoin.plan.map_batches import MapBatches, keeps_time, mapped_columns
from swjoin.routing.biclique import Biclique
from swjoin.routing.matrix import MOST_LINES, Matrix
from swjoin.routing.named import SPREAD, Places, kind_of, named

OutputTime: TypeAlias = Literal["max", "min", "left"]
ARRIVAL_TIME: Final = "arrival time"  # the time of a source whose rows are stamped as they are read
_GOLDEN = 0x9E3779B97F4A7C15
QUERY_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # also of a folder
_TIME_TYPES = re.compile(r"u?int(8|16|32|64)|timestamp\[.*|date(32|64)\[.*")


class Column(NamedTuple):
    """type: as Arrow writes it, such as `int64`, `string`, `timestamp[us]`."""

    name: str
    type: str


@dataclass(frozen=True)
class Schema:
    """Columns of a stream. time: name of the rows' time; no column has it if rows only carry the time. None: rows have none."""

    columns: tuple[Column, ...]
    time: str | None

    @cached_property
    def types(self) -> dict[str, str]:
        return dict(self.columns)


@dataclass(frozen=True)
class Source:
    """A stream from outside. time: the column of the rows' time, or ARRIVAL_TIME; None: a static table."""

    name: str
    columns: tuple[Column, ...]
    time: str | None

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class IntervalJoin:
    """Pairs of two nodes' rows with equal keys and times within bounds.

    left, right: names of the inputs. left_key, right_key: columns that are compared, the i-th with the i-th. query: bounds,
    kind and residual predicate; None is refused. output_time: the time of a pair, the greater or the lesser of both rows'
    times, or the left one's; a row that comes out alone keeps its own. band: of a join by a band, what the keys of both sides,
    an int64 column each, mean; the residual predicate has the condition itself. nested: the joins that read its rows, behind
    filters and projections alone, are one stage with it (`plan.multiway`).
    """

    name: str
    left: str
    right: str
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    query: QueryConfig | None
    output_time: OutputTime = "max"
    band: BandKeys | None = None
    nested: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.left, self.right

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.left_key, self.right_key

    @property
    def semantics(self) -> QueryConfig:
        """The query. UserError if there is none."""
        if self.query is None:
            raise UserError("no time bound", subject=self.name, remedy="give lower and upper bounds of right time - left time")
        return self.query


class _OneInput:
    """A node that reads one other."""

    input: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input,)


@dataclass(frozen=True)
class Filter(_OneInput):
    """The rows of a node that satisfy a condition, an SQL expression over its columns; null is not satisfied."""

    name: str
    input: str
    condition: str


@dataclass(frozen=True)
class Project(_OneInput):
    """Columns computed from each row of a node. columns: (name, SQL expression over the node's columns)."""

    name: str
    input: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Union:
    """The rows of all inputs, which have one schema, as a bag. keeps_ids: rows have the ids that they had, and no others; what
    reads them tells the inputs apart."""

    name: str
    inputs: tuple[str, ...]
    keeps_ids: bool = False


@dataclass(frozen=True)
class Spread(_OneInput):
    """The rows of a node, which a join reads, each once for every place where it looks for partners: every cell of its line of
    a matrix, or the unit that stores it and those that it probes (`routing.matrix`, `routing.biclique`).

    port: of the join. LEFT: rows of the matrix, or left units. one_place: left rows have one cell each, as the join says which
    of them have no partner. lines: rows and columns of the matrix, or left and right units; 0 until the number of instances is
    known, see `spread_over`. subgroups: of left and of right units, which the join's key chooses. keyed: within a place rows
    find their partners by a key; otherwise all are compared with all.
    """

    name: str
    input: str
    port: int
    one_place: bool = False
    lines: tuple[int, int] = (0, 0)
    form: Literal["matrix", "random"] = "matrix"
    subgroups: tuple[int, int] = (1, 1)
    keyed: bool = False

    @property
    def sized(self) -> bool:
        return 0 not in self.lines

    @property
    def copies(self) -> float:
        """Of a row, on average."""
        other = 1 - self.port
        return self.lines[other] / self.subgroups[other] + (self.form == "random")

    @property
    def places(self) -> Places:
        assert self.sized, f"{self.name}: places without a number"
        return Matrix(*self.lines) if self.form == "matrix" else Biclique(*self.lines, *self.subgroups)

    @property
    def description(self) -> str:
        if self.form == "random":
            parts = [
                f"{count or 'as many'} {name} units" if of == 1 else f"{count} {name} units in {of} subgroups by key"
                for count, name, of in zip(self.lines, STREAM_NAMES, self.subgroups, strict=True)
            ]
            own, other = parts if self.port == LEFT else parts[::-1]
            every = "all" if self.subgroups[1 - self.port] == 1 else "a subgroup"
            return f"stored at one of {own}, probes {every} of {other}"
        of = f"{self.lines[0]} x {self.lines[1]}" if self.sized else "of as many cells as instances"
        return f"a {('row', 'column')[self.port]} of a matrix {of}"


@dataclass(frozen=True)
class Copies(_OneInput):
    """The rows of a node, each once for every different value of two columns, `first` and `second`, in whose place they have
    `column` with that value: the cells of a band in which a row's partners lie. cell_bits: of keys that have cells
    (`core.band_keys`); two of one cell do not differ. A row with a null in either comes once, with the first."""

    name: str
    input: str
    column: str
    first: str
    second: str
    cell_bits: int = 0

    @property
    def description(self) -> str:
        return f"once or twice by {self.column}"


@dataclass(frozen=True)
class Within(_OneInput):
    """The pairs of an inner join whose right time - left time is in these bounds, microseconds, both inclusive: those of a join
    with narrower windows, which is shared with others (`plan.sharing`)."""

    name: str
    input: str
    lower_us: int
    upper_us: int

    @property
    def description(self) -> str:
        return f"right - left in [{format_duration(self.lower_us)}, {format_duration(self.upper_us)}]"

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        """rows: as a join's instances send them, whose keys are these differences."""
        mask = (rows.key >= self.lower_us) & (rows.key <= self.upper_us)
        return rows if bool(mask.all()) else rows.take(np.flatnonzero(mask))


@dataclass(frozen=True)
class Period(_OneInput):
    """The rows of a node with times from `at_us` on: those of a query that was added while the run went on (`plan.changes`).
    ends: the rows with times before `at_us`, of one that was dropped."""

    name: str
    input: str
    at_us: int
    ends: bool

    @property
    def description(self) -> str:
        return f"times before {self.at_us} us" if self.ends else f"times from {self.at_us} us on"

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        mask = rows.ts < self.at_us if self.ends else rows.ts >= self.at_us
        return rows if bool(mask.all()) else rows.take(np.flatnonzero(mask))


@dataclass(frozen=True)
class Result(_OneInput):
    """An answer of the plan: the rows of a node, which go to the sinks. of_values: its digest is one of the rows' values
    (`core.row_digests`), so that it does not depend on the plan; otherwise of their ids. order: of the rows in a
    file; none: they come as they are. named: its name is that of a query, one of several, by which its rows and counts are
    found."""

    name: str
    input: str
    of_values: bool = False
    order: tuple[OrderKey, ...] = ()
    named: bool = False


Node: TypeAlias = (
    Source | Filter | Project | MapBatches | IntervalJoin | Keyed | Lookup | Spread | Copies | Within | Period | Union | Result
)


def union_row_ids(input_index: int, ids: U64) -> U64:
    """Ids, uint64 (n,), that rows of the union's input of this index, from 0 on, have after it."""
    with np.errstate(over="ignore"):
        return mix64(ids + np.uint64(input_index * _GOLDEN & (1 << 64) - 1))


@dataclass(frozen=True)
class UnionInput:
    """The input of a union by which rows come. index: from 0 on. keeps_ids: as of the union."""

    index: int
    keeps_ids: bool = False

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        return rows if self.keeps_ids else replace(rows, id=union_row_ids(self.index, rows.id))


def nodes_below(nodes: Mapping[str, Node], last: str) -> set[str]:
    """Names of a node and of all that it needs. nodes: by name."""
    needed, waiting = {last}, [last]
    while waiting:
        for name in nodes[waiting.pop()].inputs:
            if name not in needed:
                needed.add(name)
                waiting.append(name)
    return needed


def can_share_windows(join: IntervalJoin) -> bool:
    """Whether the pairs of this join with narrower windows are those of its pairs that are within them. What reads a join of
    the full history waits for the end of all, so none is made of it."""
    query = join.semantics
    plain = query.how == "inner" and query.match == "all" and not join.nested
    return plain and not query.bounds.count_windows and not query.unbounded


def check_routing(plan: LogicalPlan, routing: str) -> None:
    """UserError for a routing that the plan cannot have. routing: as of `config.sections.ClusterConfig`."""
    spread, places = [node for node in plan.nodes if isinstance(node, Spread)], named(routing)
    joins = [node for node in plan.nodes if isinstance(node, IntervalJoin)]
    if routing != "auto" and not joins:
        raise UserError(f"routing {routing}: the query has no join of two streams", remedy="leave it out")
    wanted = "places" if kind_of(routing) in SPREAD else "hash" if routing == "skew" else kind_of(routing)
    for join in joins:
        if wanted != "auto" and (way := way_of(plan, join)) != wanted:
            raise UserError(f"routing {routing}: the run's joins go by {way}, which it keeps", remedy="leave it out")
    if not any(node.one_place for node in spread):
        return
    if kind_of(routing) in ("random", "contrand"):
        remedy = "leave it out, or write matrix:4,1"
        raise UserError(
            f"routing {routing}: left, right, semi and anti joins need all partners of a row at one place", remedy=remedy
        )
    if isinstance(places, Matrix) and places.columns > 1:
        remedy = f"write matrix:{min(places.rows * places.columns, MOST_LINES)},1"
        raise UserError(f"routing {routing}: left, right, semi and anti joins have one column of cells", remedy=remedy)


def way_of(plan: LogicalPlan, join: IntervalJoin) -> Literal["hash", "range", "places"]:
    """How the rows of a join find their partners."""
    below = [plan.node(name) for name in join.inputs]
    if any(isinstance(node, Spread) for node in below):
        return "places"
    return "range" if join.band is not None or any(isinstance(node, Copies) for node in below) else "hash"


def without_sizes(plan: LogicalPlan) -> LogicalPlan:
    """The plan with places of no number."""
    plain = {"lines": (0, 0), "form": "matrix", "subgroups": (1, 1)}
    nodes = (replace(node, **plain) if isinstance(node, Spread) else node for node in plan.nodes)  # type: ignore[arg-type]
    return LogicalPlan(tuple(nodes))


def spread_over(plan: LogicalPlan, instances: int, groups: int, routing: str) -> LogicalPlan:
    """The plan with places in a number: of `routing`, or for so many instances. groups: partition-groups. Those that have one
    keep it, so a run goes on as it began. UserError as `check_routing`, and for more places than partition-groups."""
    check_routing(plan, routing)
    spread = [node for node in plan.nodes if isinstance(node, Spread)]
    _check_kept([node for node in spread if node.sized], routing)
    if all(node.sized for node in spread):
        return plan
    given, most = named(routing), min(instances, groups)

    def of_size(node: Node) -> Node:
        if not isinstance(node, Spread) or node.sized:
            return node
        if kind_of(routing) == "broadcast":
            places: Places = Matrix.of_instances(most, one_place=True)
        elif given is not None:
            places = given
        elif kind_of(routing) == "random":
            places = Biclique.of_instances(max(1, min(instances, groups // 2)))
        else:
            places = Matrix.of_instances(most, one_place=node.one_place)
        if places.count > groups:
            problem = f"routing {routing}: {places.count} {places.word} for {groups} partition-groups"
            raise UserError(problem, remedy=("write fewer, or raise ", setting("partitions", "cluster.partition_count")))
        numbers = astuple(places)
        form: Literal["matrix", "random"] = "matrix" if isinstance(places, Matrix) else "random"
        return replace(node, lines=numbers[:2], subgroups=numbers[2:] or (1, 1), form=form)

    return LogicalPlan(tuple(map(of_size, plan.nodes)))


def _check_kept(spread: Sequence[Spread], routing: str) -> None:
    """UserError for another routing than that of nodes which have their places."""
    kind, given = kind_of(routing), named(routing)
    for node in spread:
        forms = {"auto": node.form, "broadcast": "matrix"}
        same = node.places == given if given is not None else node.form == forms.get(kind, kind) and max(node.subgroups) == 1
        if not same and kind != "auto":
            numbers = ",".join(map(str, astuple(node.places) if max(node.subgroups) > 1 else node.lines))
            shown = f"{'contrand' if max(node.subgroups) > 1 else node.form}:{numbers}"
            raise UserError(f"routing {routing}: the run has {shown}, which it keeps", remedy="leave it out")


# ---------------------------------------------------------------- columns of a join


def key_family(column: str, type_name: str) -> str:
    """Family of a key's type; types of one family are comparable. UserError for types that cannot be keys."""
    plain = re.sub(r"^dictionary<values=([^,]+),.*", r"\1", type_name)
    if re.fullmatch(r"u?int(8|16|32|64)", plain):
        return "integer"
    if re.fullmatch(r"(large_)?string(_view)?", plain):
        return "string"
    if re.fullmatch(r"(large_)?binary(_view)?|fixed_size_binary\[\d+\]", plain):
        return "binary"
    if zone := re.fullmatch(r"timestamp\[(\w+), tz=.+\]", plain):
        return f"timestamp[{zone[1]}] with time zone"
    if re.fullmatch(r"bool|(timestamp|time(32|64)|date(32|64)|duration)\[\w+\]", plain):
        return plain
    hint = "round it to an integer first" if re.match("float|half|double|decimal", plain) else "use integers or strings"
    raise UserError(f"type {type_name} cannot be a join key", subject=f"key column {column}", remedy=hint)


def _common_type(left: str, right: str) -> str:
    """Type of the key where right rows come out alone."""
    if left == right:
        return left
    plain = [re.sub(r"^dictionary<values=([^,]+),.*", r"\1", name) for name in (left, right)]
    family = key_family("", left)
    if plain[0] == plain[1] or family not in ("integer", "string", "binary"):
        return plain[0]
    if family == "integer":
        return "decimal128(20, 0)" if "uint64" in plain else "int64"
    return f"large_{family}"


class JoinColumn(NamedTuple):
    """A column of a join's rows. side, origin: the input and the column of it that the values come from."""

    name: str
    type: str
    side: int
    origin: str


def join_columns(join: IntervalJoin, left: Schema, right: Schema) -> tuple[JoinColumn, ...]:
    """Columns of a join's rows: the key once, named as on the left, then all others of both sides, prefixed `left_` and
    `right_` where names clash; semi and anti joins have the left ones only. Where a right row comes out alone, the right key's
    values are in the key's columns."""
    kind = join.semantics.kind
    keys = [c for c in left.columns if c.name in join.left_key]
    rest = [c for c in left.columns if c.name not in join.left_key]
    others = [] if kind.one_sided else [c for c in right.columns if c.name not in join.right_key]
    clashing = set(left.types) & {c.name for c in others}
    taken: set[str] = set()
    found = []
    for side, column in [*((LEFT, c) for c in (*keys, *rest)), *((RIGHT, c) for c in others)]:
        is_key = side == LEFT and column in keys
        name, type_name = column
        if is_key and kind.unmatched[RIGHT]:
            type_name = _common_type(type_name, right.types[join.right_key[join.left_key.index(name)]])
        if name in clashing and not is_key:
            name = f"{STREAM_NAMES[side]}_{name}"
        while name in taken:
            name += "_"
        taken.add(name)
        found.append(JoinColumn(name, type_name, side, column.name))
    return tuple(found)


def _join_schema(join: IntervalJoin, left: Schema, right: Schema) -> Schema:
    columns = join_columns(join, left, right)
    kind = join.semantics.kind
    if kind.one_sided or (join.output_time == "left" and not kind.unmatched[RIGHT]):
        time = next((c.name for c in columns if (c.side, c.origin) == (LEFT, left.time)), str(left.time))
    else:
        time = "ts"
        while time in {c.name for c in columns}:
            time += "_"
    return Schema(tuple(Column(c.name, c.type) for c in columns), time)


# ---------------------------------------------------------------- plans


@dataclass(frozen=True)
class LogicalPlan:
    """Nodes of a plan, in any order. UserError, when it is made, for a plan that cannot be run."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        names = Counter(node.name for node in self.nodes)
        results = Counter(node.name for node in self.nodes if isinstance(node, Result))
        for name, count in names.items():
            what = "results" if results[name] == count else "nodes"
            _check(count == 1, name, f"{count} {what} have this name", "name each node once")
        for node in self.nodes:
            if isinstance(node, Result) and node.named:
                ok = QUERY_NAME.fullmatch(node.name) is not None
                _check(ok, "plan", "a query's name that is none", "write letters, digits, _, - and dots")
            if isinstance(node, Union):
                _check(len(node.inputs) > 1, node.name, "a union needs two inputs or more", "name its inputs")
            for port, name in zip(_ports(node), node.inputs, strict=True):
                _check(bool(name), node.name, f"its {port} is missing", "name a source or another node")
                if name not in names:
                    known = ", ".join(n for n in names if not results[n])
                    _check(False, node.name, f"its {port} {name} is not in the plan", f"nodes are {known}")
                _check(not results[name], node.name, f"its {port} {name} is a result", "read what the result reads")
        _check(bool(results), "plan", "it has no result", "add a result that reads a node")
        for node in self.ordered:
            read = isinstance(node, Result) or bool(self.readers[node.name])
            _check(read, node.name, "no node reads its rows", "add a result that reads it, or leave it out")
            self.schema(node.name)
        for node in self.ordered:
            if isinstance(node, IntervalJoin) and node.semantics.bounds.count_windows:
                self._check_count_windows(node)
            if isinstance(node, Within):
                join = self.node(node.input)
                ok = isinstance(join, IntervalJoin) and can_share_windows(join)
                _check(ok, node.name, f"its input {node.input} is no inner join within bounds of time", "let it read one")
            if isinstance(node, Spread):
                joins = [reader for reader in self.readers[node.name] if isinstance(reader, IntervalJoin)]
                ok = len(joins) == len(self.readers[node.name]) and all(j.inputs[node.port] == node.name for j in joins)
                _check(ok, node.name, "its rows are read by what is no join", "let a join alone read it, at its port")

    def _check_count_windows(self, join: IntervalJoin) -> None:
        alone = all(isinstance(self.node(name), Source) for name in join.inputs)
        last = all(isinstance(reader, Result) for reader in self.readers[join.name])
        remedy = "join within bounds of time, or read two sources and feed results alone"
        _check(alone and last, join.name, "count windows need the order of sources, and give no time bound", remedy)

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def node(self, name: str) -> Node:
        return self._by_name[name]

    @cached_property
    def ordered(self) -> tuple[Node, ...]:
        """The nodes, each after its inputs. UserError for a cycle."""
        try:
            names = tuple(TopologicalSorter({node.name: node.inputs for node in self.nodes}).static_order())
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
            raise UserError(f"a cycle: {cycle}", subject="plan", remedy="let no node read its own output") from None
        return tuple(self.node(name) for name in names)

    @cached_property
    def readers(self) -> dict[str, tuple[Node, ...]]:
        """For every node, those that read its rows, once each."""
        found: dict[str, list[Node]] = {name: [] for name in self._by_name}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def _schemas(self) -> dict[str, Schema]:
        found: dict[str, Schema] = {}
        for node in self.ordered:
            found[node.name] = _schema(node, [found[name] for name in node.inputs])
        return found

    def schema(self, name: str) -> Schema:
        """Columns and time of a node's rows."""
        return self._schemas[name]


def _check(ok: bool, subject: str, problem: str, remedy: str) -> None:
    if not ok:
        raise UserError(problem, subject=subject, remedy=remedy)


def _ports(node: Node) -> Iterator[str]:
    if isinstance(node, IntervalJoin):
        return iter(("left input", "right input"))
    if isinstance(node, Lookup):
        return iter(("input", "table"))
    return (f"input {i}" if isinstance(node, Union) else "input" for i in range(len(node.inputs)))


def _schema(node: Node, inputs: Sequence[Schema]) -> Schema:
    """Schema of a node. UserError if its inputs do not fit."""
    match node:
        case Source():
            _check_source(node)
            return Schema(node.columns, node.time)
        case Filter():
            type_name = type_of(node.condition, inputs[0].columns, node.name)
            _check(type_name == "bool", node.name, f"its condition is {type_name}", "use a comparison")
            return inputs[0]
        case Project():
            return _project_schema(node, inputs[0])
        case MapBatches():
            return _mapped_schema(node, inputs[0])
        case IntervalJoin():
            _check_join(node, *inputs)
            return _join_schema(node, *inputs)
        case _ if isinstance(node, Keyed):
            return _keyed_schema(node, inputs[0])
        case Lookup():
            return _lookup_schema(node, *inputs)
        case Spread():
            _check(node.port in (LEFT, RIGHT), node.name, f"port {node.port}", "give 0 or 1")
            ok = all(0 <= n <= MOST_LINES for n in node.lines) and (not node.one_place or node.lines[1] <= 1)
            _check(ok, node.name, f"{node.lines[0]} x {node.lines[1]} places", f"give at most {MOST_LINES} lines")
            ok = node.subgroups == (1, 1) or all(1 <= of <= n for of, n in zip(node.subgroups, node.lines, strict=True))
            _check(ok, node.name, f"{node.subgroups} subgroups of {node.lines} units", "give at most as many as units")
            return inputs[0]
        case Copies():
            return _copied_schema(node, inputs[0])
        case Within():
            return inputs[0]
        case Period():
            return inputs[0]
        case Union():
            for i, schema in enumerate(inputs):
                _check_union_input(node, i, schema, inputs[0])
            return _union_schema(inputs)
        case Result():
            for name, _, _ in node.order:
                known = ", ".join(inputs[0].types)
                _check(name in inputs[0].types, node.name, f"no column {name} to order by", f"columns are {known}")
            return inputs[0]


def _check_source(source: Source) -> None:
    names = [column.name for column in source.columns]
    twice = [name for name in names if names.count(name) > 1]
    _check(not twice, source.name, f"two columns are named {twice[0] if twice else ''}", "name each column once")
    if source.time not in (None, ARRIVAL_TIME):
        _check(source.time in names, source.name, f"no time column {source.time}", f"columns are {', '.join(names)}")
        type_name = dict(source.columns)[str(source.time)]
        ok = _TIME_TYPES.fullmatch(type_name) is not None
        _check(ok, source.name, f"time column {source.time} is {type_name}", "use a timestamp or an integer column")


def _project_schema(project: Project, schema: Schema) -> Schema:
    names = [name for name, _ in project.columns]
    twice = [name for name in names if names.count(name) > 1]
    _check(bool(names), project.name, "it has no columns", "name one or more")
    _check(not twice, project.name, f"two columns are named {twice[0] if twice else ''}", "name each once")
    types = [type_of(text, schema.columns, f"{project.name}: column {name}") for name, text in project.columns]
    for name, type_name in zip(names, types, strict=True):
        _check(type_name != "null", project.name, f"column {name} is null for every row", "cast it to a type")
    time = next((name for name, text in project.columns if is_column(text, schema.columns, str(schema.time))), schema.time)
    while time in names and not is_column(dict(project.columns)[time], schema.columns, str(schema.time)):
        time += "_"  # another column has the name
    return Schema(tuple(map(Column, names, types)), time)


def _mapped_schema(node: MapBatches, schema: Schema) -> Schema:
    columns = tuple(Column(*column) for column in mapped_columns(node, schema.columns, schema.time))
    time = schema.time
    while time in dict(columns) and not keeps_time(node, schema.columns, time):
        time = f"{time}_"  # another column has the name
    return Schema(columns, time)


def _copied_schema(node: Copies, schema: Schema) -> Schema:
    for name in (node.first, node.second):
        _check(name in schema.types, node.name, f"no column {name}", f"columns are {', '.join(schema.types)}")
    types = schema.types[node.first], schema.types[node.second]
    _check(types[0] == types[1], node.name, f"{node.first} is {types[0]}, {node.second} is {types[1]}", "cast one of them")
    rest = tuple(column for column in schema.columns if column.name not in (node.first, node.second))
    _check(node.column not in dict(rest), node.name, f"two columns are named {node.column}", "rename it")
    return Schema((*rest, Column(node.column, types[0])), schema.time)


def _keyed_schema(node: Keyed, schema: Schema) -> Schema:
    if isinstance(node, Aggregate):
        found = aggregate_types(node, schema.types, schema.time)
    elif isinstance(node, LiveGroups):
        found = live_types(node, schema.types, schema.time)
    elif isinstance(node, CountedJoin):
        found = counted_types(node, schema.types, schema.time)
    else:
        found = kept_types(node, schema.types, schema.time)
    columns = tuple(Column(*column) for column in found)
    if isinstance(node, Ranked) and not node.start and node.ts_after_us == 0 and node.windows.size_us == 1:
        return Schema(columns, schema.time)  # a row's window is its time
    time = {"start": node.start, "end": node.end}.get(node.output_time, "")
    if not time:
        time = "ts"
        while time in dict(columns):
            time += "_"
    return Schema(columns, time)


def _lookup_schema(node: Lookup, stream: Schema, table: Schema) -> Schema:
    problem = f"its table {node.table} has a time, {table.time}"
    _check(table.time is None, node.name, problem, "join within bounds of time, or read a static table")
    columns = tuple(Column(*column) for column in lookup_columns(node, stream.columns, table.columns))
    time = stream.time
    while time is not None and time not in stream.types and time in dict(columns):
        time += "_"  # a column of the table has the name
    return Schema(columns, time)


def _check_join(join: IntervalJoin, left: Schema, right: Schema) -> None:
    _check(join.output_time in ("max", "min", "left"), join.name, f"output time {join.output_time}", "use max, min or left")
    counts = [len(key) for key in join.keys]
    problem = f"{counts[LEFT]} key columns on the left, {counts[RIGHT]} on the right"
    _check(counts[LEFT] == counts[RIGHT], join.name, problem, "name as many on both sides")
    for side, (schema, key) in enumerate(zip((left, right), join.keys, strict=True)):
        port = f"{STREAM_NAMES[side]} input {join.inputs[side]}"
        _check(schema.time is not None, join.name, f"{port} has no time", "name the time column of its sources")
        for name in key:
            _check(name in schema.types, join.name, f"{port} has no column {name}", f"columns are {', '.join(schema.types)}")
        try:
            check_key(key)
        except UserError as error:
            raise error.prefixed(f"{join.name}: {port}") from None
    for name, other in zip(*join.keys, strict=True):
        types = left.types[name], right.types[other]
        try:
            families = key_family(name, types[LEFT]), key_family(other, types[RIGHT])
        except UserError as error:
            raise error.prefixed(join.name) from None
        problem = f"left key {name} is {types[LEFT]}, right key {other} is {types[RIGHT]}"
        _check(families[LEFT] == families[RIGHT], join.name, problem, "cast one side so that both agree")
    if join.band is not None:
        kinds = [[schema.types[name] for name in key] for schema, key in zip((left, right), join.keys, strict=True)]
        _check(kinds == [["int64"]] * 2, join.name, f"a band with keys of {kinds}", "give each side one int64 column")
        _check(not join.semantics.bounds.count_windows, join.name, "a band with count windows", "give bounds of time")
        join.band.check(join.name)


def _check_union_input(union: Union, index: int, schema: Schema, first: Schema) -> None:
    for column, other in zip(schema.columns, first.columns, strict=False):
        problem = f"input {union.inputs[index]} has {column.name} {column.type} where {union.inputs[0]} has {' '.join(other)}"
        _check(column == other, union.name, problem, "give all inputs the same columns in the same order")
    counts = len(schema.columns), len(first.columns)
    problem = f"input {union.inputs[index]} has {counts[0]} columns, {union.inputs[0]} has {counts[1]}"
    _check(counts[0] == counts[1], union.name, problem, "give all inputs the same columns in the same order")
    timed, untimed = (union.inputs[index], union.inputs[0]) if first.time is None else (union.inputs[0], union.inputs[index])
    _check((schema.time is None) == (first.time is None), union.name, f"{timed} has a time, {untimed} has none", "give all one")


def _union_schema(inputs: Sequence[Schema]) -> Schema:
    """No column is the time of all rows if it is another one in some input."""
    first = inputs[0]
    time = first.time if all(schema.time == first.time for schema in inputs) else "ts"
    if any(schema.time != first.time for schema in inputs):
        while time in first.types:
            time = f"{time}_"
    return Schema(first.columns, time)
