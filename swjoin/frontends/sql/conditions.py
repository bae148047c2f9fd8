"""The conditions of a join: keys, the bounds of its times, what is tested on one side, and the rest.

What: `Names`, the names of fields in expressions, and `names_of`; `conjuncts`; `Conditions`, `joined`.
Why: SQL has one condition, an interval join has an equality that finds the instance, bounds that say how long a row is
kept, and a residual predicate.
Stays out: relations (`frontends.sql.relations`), other clauses (`frontends.sql.planner`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
from sqlglot import exp

from swjoin.config.sections import QueryConfig
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.columns import type_named
from swjoin.core.errors import UserError, one_line
from swjoin.core.join_semantics import Match
from swjoin.core.units import UNBOUNDED_US
from swjoin.expressions.binder import Scope, bind, parse_expression
from swjoin.expressions.tree import Column, Expr, can_fail
from swjoin.expressions.types import family, read_as
from swjoin.frontends.sql.bands import FLIPPED, Band, Cells, band_of, number_of
from swjoin.frontends.sql.relations import Field, Filtered, Joined, Relation, Side, column_of, filtered, instant_of
from swjoin.frontends.sql.windows import window_columns
from swjoin.plan.columns import columns_of
from swjoin.plan.logical import Column as PlanColumn
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Result, Source
from swjoin.plan.stages import cut
from swjoin.routing.named import SPREAD, kind_of

_FLIPPED = FLIPPED | {exp.EQ: exp.EQ}
_SIDES = ("left", "right")
_MOST_NAMES, _MOST_TEXTS = 256, 4_096  # that are kept
_ONE_KEY = "CAST(0 AS BIGINT)"  # of rows that meet whatever their values


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that must all hold."""
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        for part in condition.flatten():
            yield from conjuncts(part)
    elif isinstance(condition, exp.Between) and not condition.args.get("negate") and not condition.args.get("symmetric"):
        yield exp.GTE(this=condition.this.copy(), expression=condition.args["low"].copy())
        yield exp.LTE(this=condition.this.copy(), expression=condition.args["high"].copy())
    else:
        yield condition


def _content(part: object) -> Hashable:
    """What two nodes have in common if they say the same in the same spelling."""
    if isinstance(part, exp.Connector):  # a chain of hundreds is as deep
        return type(part), *(_content(each) for each in part.flatten(unnest=False))
    if isinstance(part, exp.Expr):
        return type(part), *((name, _content(value)) for name, value in part.args.items())
    return tuple(_content(value) for value in part) if isinstance(part, list) else (type(part), part)


def names_of(fields: Iterable[Field]) -> Names:
    """One for the same fields, of however many queries: these have many conditions in common."""
    return _names_of(tuple(fields))


@lru_cache(_MOST_NAMES)
def _names_of(fields: tuple[Field, ...]) -> Names:
    return Names(fields)


class Names:
    """The columns that an expression over these fields may name."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = {(f.table, f.name): f for f in fields}
        self._places = Scope({key: Column(str(i), pa.int64()) for i, key in enumerate(self.fields)})
        self._ordered = list(self.fields.values())
        kinds = {(f.column, f.type, f.unit_us) for f in self._ordered}  # one of each side may have the same name
        count = Counter(column for column, *_ in kinds)
        self._columns = {f: f.column if count[f.column] == 1 else f"{f.column} {i}" for i, f in enumerate(self._ordered)}
        self._texts = dict[Hashable, tuple[str, Expr]]()  # of expressions, by content

    def field(self, column: exp.Column) -> Field:
        """UserError for an unknown or an ambiguous name."""
        if column.args.get("db"):
            raise UserError(f"{column.sql('duckdb')} is not supported", remedy="write TABLE.COLUMN")
        return self._ordered[int(str(self._places.column(column.table, column.name).text))]

    def read_by(self, node: exp.Expr) -> list[Field]:
        """The fields that an expression reads."""
        return [self.field(column) for column in node.find_all(exp.Column)]

    def knows(self, node: exp.Expr) -> bool:
        """Whether it reads fields of these alone. A name that only another table makes ambiguous is not known."""
        try:
            self.read_by(node)
        except UserError:
            return False
        return True

    def text(self, node: exp.Expr) -> tuple[str, Expr]:
        """An expression as the plan's text, and its meaning. UserError if it has none."""
        content = _content(node)
        found = self._texts.get(content)
        if found is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            found = self._texts[content] = self._text(node)
        return found

    def _text(self, node: exp.Expr) -> tuple[str, Expr]:
        for f in self.read_by(node):
            if self._columns[f] not in self._read:
                shown = one_line(node.sql("duckdb"), 100)
                raise UserError(f"column {f.name} is {f.type}, which no expression reads", subject=shown, remedy="leave it out")
        expr = bind(node, self.scope)
        text = self.written(node).sql("duckdb")
        if bind(parse_expression(text), self.plan_scope) != expr:
            raise UserError(f"{one_line(node.sql('duckdb'), 100)} is not supported")
        return text, expr

    def written(self, node: exp.Expr) -> exp.Expr:
        """With the plan's columns. Integers that are times are timestamps."""

        def changed(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            f = self.field(part)
            return instant_of(exp.Column(this=exp.to_identifier(self._columns[f], quoted=True)), f)

        return node.copy().transform(changed)

    @cached_property
    def scope(self) -> Scope:
        """By the names that queries have for columns. Integers that are times are timestamps."""
        found = {}
        for key, f in self.fields.items():
            read = self._read.get(self._columns[f])
            if read is not None:
                call = instant_of(exp.column(self._columns[f], quoted=True), f)
                found[key] = read if f.unit_us is None else bind(call, self.plan_scope)
        return Scope(found)

    @cached_property
    def plan_scope(self) -> Scope:
        """By the plan's names."""
        return Scope({("", name): column for name, column in self._read.items()})

    @cached_property
    def _read(self) -> dict[str, Expr]:
        found: dict[str, Expr] = {}
        for f in self._ordered:
            try:
                found[self._columns[f]] = Column(self._columns[f], read_as(type_named(f.type)))
            except UserError:
                continue  # of a type that no expression reads
        return found


def instant_text(f: Field) -> str:
    """The text of a column; of an integer that is a time, of its timestamp."""
    return instant_of(exp.column(f.column, quoted=True), f).sql("duckdb")


def instant_type(f: Field) -> pa.DataType | None:
    """The type of the timestamp that an integer stands for; None for other columns."""
    return None if f.unit_us is None else pa.timestamp("ns" if f.unit_us < 1 else "us")


# ---------------------------------------------------------------- times


@dataclass(frozen=True)
class _Difference:
    """A condition on two times: right - left, microseconds, at least or at most `us`."""

    left: str
    right: str
    lower: bool
    us: int
    exclusive: bool
    node: exp.Expr


def _linear(node: exp.Expr, names: Names) -> tuple[dict[Field, int], Fraction] | None:
    """A sum of fields, with factors, and of intervals in microseconds; None for anything else."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        return {names.field(node): 1}, Fraction(0)
    if isinstance(node, exp.Interval):
        us = number_of(node)
        assert us is not None, "intervals are constants"
        return {}, us
    if isinstance(node, exp.Neg):
        inner = _linear(node.this, names)
        return None if inner is None else ({f: -factor for f, factor in inner[0].items()}, -inner[1])
    if isinstance(node, exp.Add | exp.Sub):
        parts = _linear(node.this, names), _linear(node.expression, names)
        if parts[0] is None or parts[1] is None:
            return None
        sign = 1 if isinstance(node, exp.Add) else -1
        fields = dict(parts[0][0])
        for f, factor in parts[1][0].items():
            fields[f] = fields.get(f, 0) + sign * factor
        return {f: factor for f, factor in fields.items() if factor}, parts[0][1] + sign * parts[1][1]
    return None


# ---------------------------------------------------------------- conditions of one join


class Conditions:
    """What is known of a join's conditions; `joined` makes the join of them."""

    def __init__(self, left: Relation, right: Relation, how: str, *, as_of: bool = False) -> None:
        """A right join is taken as the left join of the right side. as_of: one row of the right side is chosen of those that
        satisfy the conditions."""
        self.as_of = as_of
        self.how = "left" if how == "right" else how
        self.fields = (*left.fields, *(() if how in ("semi", "anti") else right.fields))
        self.sides = (right, left) if how == "right" else (left, right)
        self.names = (names_of(self.sides[0].fields), names_of(self.sides[1].fields))
        self.both = names_of((*left.fields, *right.fields))
        self._left_table = left
        self.keys: list[tuple[exp.Expr, exp.Expr]] = []
        self.differences: list[_Difference] = []
        self.alone: tuple[list[exp.Expr], list[exp.Expr]] = ([], [])  # tested on a side's rows, before the join
        self.rest: list[exp.Expr] = []

    def equal(self, name: str) -> None:
        """USING: a column that both sides have."""
        parts = []
        for names in self.names:
            f = names.field(exp.column(name))
            parts.append(exp.column(f.name, f.table or None, quoted=True))
        self.add(exp.EQ(this=parts[0], expression=parts[1]))

    def add_all(self, conditions: Iterable[exp.Expr]) -> None:
        for condition in conditions:
            self.add(condition)

    def take(self, where: Sequence[exp.Expr], *, pushed: bool) -> list[exp.Expr]:
        """Take conditions of WHERE that an inner join can test; returns the others."""
        rest = []
        for condition in where:
            known = pushed and self.both.knows(condition) and condition.find(exp.Column) is not None
            if known and (self._is_key_or_time(condition) or not self._fails(condition)):
                self.add(condition)
            else:
                rest.append(condition)
        return rest

    def _is_key_or_time(self, condition: exp.Expr) -> bool:
        return self._difference(condition) is not None or self._key(condition) is not None

    def add(self, condition: exp.Expr) -> None:
        """A condition that all pairs satisfy."""
        fields = self.both.read_by(condition)  # names are known, and not ambiguous
        self.both.text(condition)  # it has a meaning
        found = self._difference(condition)
        if found is not None:
            self.differences += found
        elif (key := self._key(condition)) is not None:
            self.keys.append(key)
            self.differences += self._of_windows(condition, key)
        elif (side := self.side_of(fields)) is not None and self.tested_alone(side) and not self._fails(condition):
            self.alone[side].append(condition)
        else:
            self.rest.append(condition)

    def _fails(self, condition: exp.Expr) -> bool:
        return can_fail(self.both.text(condition)[1])

    def tested_alone(self, side: int) -> bool:
        """Whether rows of this side that fail a condition of the join have no part in its answer."""
        return self.how in ("inner", "semi") or (side == RIGHT and self.how in ("left", "anti"))

    def side_of(self, fields: Sequence[Field]) -> int | None:
        """The side of which all these fields are; None for fields of both, or none."""
        sides = {side for side in (LEFT, RIGHT) for f in fields if f in self.names[side].fields.values()}
        return sides.pop() if len(sides) == 1 else None

    def meaning(self, node: exp.Expr) -> tuple[int | None, Expr]:
        """The side of the fields that an expression reads, as `side_of`, and what it means."""
        return self.side_of(self.both.read_by(node)), self.both.text(node)[1]

    def _key(self, condition: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
        """Both sides of an equality, the left one's first."""
        if not isinstance(condition, exp.EQ):
            return None
        parts = [condition.this.unnest(), condition.expression.unnest()]
        sides = [self.side_of(self.both.read_by(part)) for part in parts]
        if sides == [RIGHT, LEFT]:
            parts, sides = parts[::-1], sides[::-1]
        if sides != [LEFT, RIGHT]:
            return None
        kinds = {family(self.both.text(part)[1].type).replace("uint64", "int") for part in parts}
        return None if kinds & {"float", "decimal", "interval"} or len(kinds) > 1 else (parts[0], parts[1])

    def _of_windows(self, condition: exp.Expr, key: tuple[exp.Expr, exp.Expr]) -> list[_Difference]:
        """What an equality of edges of windows of one kind says of the rows' times: they are in one window."""
        if not all(isinstance(part, exp.Column) for part in key):
            return []
        columns = [
            names.field(part).column for names, part in zip(self.names, key, strict=True) if isinstance(part, exp.Column)
        ]
        found = [window_columns(side).get(column) for side, column in zip(self.sides, columns, strict=True)]
        if found[0] is None or found[1] is None or found[0][:2] != found[1][:2]:
            return []
        most = found[0][1].size_us - 1
        times = found[0][2], found[1][2]
        return [_Difference(*times, lower, -most if lower else most, False, condition) for lower in (True, False)]

    def _difference(self, condition: exp.Expr) -> list[_Difference] | None:
        """A comparison of both sides' times."""
        kind = type(condition)
        if kind not in _FLIPPED:
            return None
        parts = _linear(condition.this, self.both), _linear(condition.expression, self.both)
        if parts[0] is None or parts[1] is None:
            return None
        factors = dict(parts[0][0])
        for f, factor in parts[1][0].items():
            factors[f] = factors.get(f, 0) - factor
        factors = {f: factor for f, factor in factors.items() if factor}
        by_side = {self.side_of([f]): (f, factor) for f, factor in factors.items()}
        if len(factors) != 2 or set(by_side) != {LEFT, RIGHT}:
            return None
        (left, of_left), (right, of_right) = by_side[LEFT], by_side[RIGHT]
        if abs(of_left) != 1 or of_left != -of_right:
            return None
        if left.column not in self.sides[LEFT].times or right.column not in self.sides[RIGHT].times:
            return None
        bound = parts[1][1] - parts[0][1]  # of_left * left + of_right * right KIND bound
        if of_right < 0:
            bound, kind = -bound, _FLIPPED[kind]
        us, open_end = int(bound), kind in (exp.LT, exp.GT)
        kinds = (True, False) if kind is exp.EQ else (kind in (exp.GT, exp.GTE),)
        return [_Difference(left.column, right.column, lower, us, open_end, condition) for lower in kinds]

    # ------------------------------------------------------------ what the join is made of

    def bounds(self) -> tuple[str, str, tuple[int, int, tuple[str, ...]]]:
        """The time columns of both sides, and the bounds. Conditions on other times are among the rest. UserError if a bound is
        missing."""
        pairs = list(dict.fromkeys((d.left, d.right) for d in self.differences))
        for left, right in pairs:
            mine = [d for d in self.differences if (d.left, d.right) == (left, right)]
            lower = max(((d.us, d.exclusive) for d in mine if d.lower), default=None)
            upper = min(((d.us, not d.exclusive) for d in mine if not d.lower), default=None)
            if lower is None or upper is None:
                continue
            others = [d.node for d in self.differences if d not in mine]
            self.rest += [node for i, node in enumerate(others) if node not in others[:i]]
            if lower[0] > upper[0] or (lower[0] == upper[0] and (lower[1] or not upper[1])):
                names = [_spelled(side, column) for side, column in zip(self.sides, (left, right), strict=True)]
                problem = f"no times of {names[0]} and {names[1]} satisfy the conditions of the join"
                raise UserError(problem, remedy="exchange its bounds")
            exclusive = (*(("lower",) if lower[1] else ()), *(() if upper[1] else ("upper",)))
            return left, right, (lower[0], upper[0], exclusive)
        raise self._unbounded(pairs)

    def take_times_as_keys(self) -> None:
        """Without another equality, one of times, such as of two windows, finds the instance."""
        equalities = (self._key(d.node) for d in self.differences if isinstance(d.node, exp.EQ))
        if not self.keys and (key := next((found for found in equalities if found is not None), None)) is not None:
            self.keys.append(key)

    def take_keys_as_conditions(self) -> None:
        """Equalities are bands of width 0."""
        self.rest += [exp.EQ(this=left.copy(), expression=right.copy()) for left, right in self.keys]
        self.keys.clear()

    def _unbounded(self, pairs: Sequence[tuple[str, str]]) -> UserError:
        for side in self.sides:
            if not side.times:
                tables = " and ".join(dict.fromkeys(f.table for f in side.fields))
                remedy = (
                    "join rows whose time column is selected (of a left or an as-of join the left side's; a full join has none)"
                )
                raise UserError(f"no column of {tables} is the time of its rows", remedy=remedy)
        shown = [_spelled(side, next(iter(side.times), None)) for side in self.sides]
        left, right = (shown[0], shown[1]) if self.sides[0] is self._left_table else (shown[1], shown[0])
        if pairs:
            names = [_spelled(side, column) for side, column in zip(self.sides, pairs[0], strict=True)]
            lower = any(d.lower for d in self.differences if (d.left, d.right) == pairs[0])
            what, sign = ("upper", "<=") if lower else ("lower", ">=")
            end = "+" if lower else "-"
            add = f"AND {names[1]} {sign} {names[0]} {end} INTERVAL '10' SECOND"
            return UserError(f"the join has no {what} bound of {names[1]}", remedy=f"add one: {add}")
        add = f"AND {right} BETWEEN {left} - INTERVAL '10' SECOND AND {left} + INTERVAL '10' SECOND"
        return UserError("the join of two streams has no time condition", remedy=f"add one: {add}")


def _spelled(relation: Relation, column: str | None) -> str:
    found = next((f for f in relation.fields if f.column == column), None)
    return "?" if found is None else f"{found.table}.{found.name}" if found.table else found.name


def joined(conditions: Conditions, routing: str = "auto") -> Relation:
    """The join. routing: how its rows find their partners, as of `config.sections.ClusterConfig`. UserError for conditions that
    it cannot have."""
    left_time, right_time, bounds = conditions.bounds()
    match = _match_of(bounds) if conditions.as_of else "all"
    if conditions.as_of and kind_of(routing) not in ("auto", "hash"):
        raise UserError(f"routing {routing}: an as-of join goes by hash, as one place knows all matches", remedy="leave it out")
    conditions.take_times_as_keys()
    if kind_of(routing) == "range":
        conditions.take_keys_as_conditions()
    how, cells, spread = conditions.how, None, kind_of(routing) in SPREAD
    if how == "full" and (spread or kind_of(routing) in ("range", "skew")):
        raise UserError(f"routing {routing}: a full join needs all partners of a row at one place", remedy="leave it out")
    if routing == "skew" and bounds[1] - bounds[0] >= UNBOUNDED_US:
        raise UserError("routing skew: hot keys are spread within bounds of time", remedy="give bounds, or leave it out")
    band = band_of(conditions.rest, conditions.meaning)
    if conditions.as_of:
        band = None
    elif not conditions.keys:
        cells = _cells(conditions, band)
        spread = spread or cells is None
    if not conditions.as_of:
        _check_routing(conditions, routing, cells)
    keys: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    merged: set[str] = set()  # columns of the right side
    renamed: dict[Field, str] = {}
    for i, parts in enumerate(conditions.keys):
        plain = [conditions.both.field(part) if isinstance(part, exp.Column) else None for part in parts]
        one, two = plain
        name = f"key {i}"
        if one is not None and how != "full" and one.unit_us is None and column_of(one) not in dict(keys[LEFT]):
            name = column_of(one)
        for side, part in enumerate(parts):
            keys[side].append((name, conditions.names[side].written(part).sql("duckdb")))
        alike = one is not None and two is not None and one.type == two.type and one.unit_us == two.unit_us
        if how == "inner" and alike and two is not None and name != f"key {i}" and two.column != right_time:
            merged.add(two.column)
            renamed[two] = name
    if not conditions.keys:
        firsts = (_ONE_KEY, _ONE_KEY) if cells is None else (cells.left, cells.right[0])
        for side in (LEFT, RIGHT):
            keys[side].append(("cell", firsts[side]))
    made = []
    for side, time in enumerate((left_time, right_time)):
        texts = [conditions.names[side].text(node)[0] for node in conditions.alone[side]]
        hidden = frozenset(merged) if side == RIGHT else frozenset()
        more = cells if side == RIGHT else None
        of_places, keyed = how != "inner" if spread else None, bool(conditions.keys) or cells is not None or conditions.as_of
        made.append(Side(filtered(conditions.sides[side], texts), time, tuple(keys[side]), hidden, more, of_places, keyed))

    def inner_name(f: Field) -> str:
        return renamed.get(f) or column_of(f)

    fields = tuple(Field(f.table, f.name, inner_name(f), f.type, f.unit_us) for f in conditions.fields)
    try:
        where, after = _residual(conditions, made, keys, inner_name)
    except UserError as error:
        if kind_of(routing) != "range":
            raise
        raise UserError(
            f"routing range: {error.problem}", remedy="write hash or matrix, which compare keys of any type"
        ) from None
    near = None if cells is None else cells.keys
    relation: Relation = Joined(fields, made[LEFT], made[RIGHT], how, bounds, where, near, match)  # type: ignore[arg-type]
    names = names_of(relation.fields)
    return filtered(relation, [names.text(node)[0] for node in after])


def _match_of(bounds: tuple[int, int, tuple[str, ...]]) -> Match:
    """Which row an ASOF JOIN has, as its bounds of right time - left time say: the last at or before, the first at or after, or
    within bounds on both sides the nearest."""
    lower, upper = bounds[0] + ("lower" in bounds[2]), bounds[1] - ("upper" in bounds[2])  # times are whole microseconds
    return "last" if upper <= 0 else "first" if lower >= 0 else "nearest"


def _check_routing(conditions: Conditions, routing: str, cells: Cells | None) -> None:
    """UserError for a routing that the join cannot have. cells: of its band, if there is no equality."""
    kind = kind_of(routing)
    tables = " and ".join(dict.fromkeys(side.fields[0].table for side in conditions.sides))
    if kind in ("hash", "skew") and not conditions.keys:
        problem = f"routing {kind}: the join of {tables} has no equality of values that can be hashed"
        raise UserError(problem, remedy="leave it out, or write range or matrix")
    if kind == "range" and cells is None:
        problem = f"routing range: the join of {tables} bounds no difference of numbers or times from both sides"
        raise UserError(problem, remedy="leave it out, or write hash or matrix")
    if kind == "contrand" and cells is None and not conditions.keys:
        problem = f"routing {routing}: the join of {tables} has neither an equality nor a band, whose values choose subgroups"
        raise UserError(problem, remedy="write random:M,N")


def _cells(conditions: Conditions, band: Band | None) -> Cells | None:
    """Cells of a band, the keys of a join without an equality; None if it has none. UserError for a full join, of which no side
    has one place."""
    if conditions.how == "full":
        raise UserError("a full join has no equality of its two sides", remedy="add one: ON a.key = b.key AND ...")
    if band is None:
        return None
    return band.cells(conditions.names[LEFT].text(band.left)[0], conditions.names[RIGHT].text(band.right)[0])


def _residual(
    conditions: Conditions, sides: list[Side], keys: Any, inner_name: Any
) -> tuple[tuple[str | None, str | None], list[exp.Expr]]:
    """The residual predicate, with the sides as they are and exchanged; and conditions that are tested after an inner join,
    because the predicate of a join has fewer functions; those of one side may be tested there. UserError if none is right."""
    within, after = [], []
    for node in conditions.rest:
        if not pa.types.is_boolean(conditions.both.text(node)[1].type):
            raise UserError(f"{one_line(node.sql('duckdb'), 100)} is no condition", remedy="use a comparison")
        text = _predicate(conditions, node, (LEFT, RIGHT), inner_name)
        works = all(map(_safe_division, node.find_all(exp.Div))) and _works(conditions, sides, keys, text)
        side = conditions.side_of(conditions.both.read_by(node))
        if works:
            within.append(node)
        elif side is not None and conditions.tested_alone(side):
            text = conditions.names[side].text(node)[0]
            sides[side] = replace(sides[side], of=Filtered(sides[side].of, text))
        elif conditions.how == "inner" and not conditions.as_of:
            after.append(node)
        else:
            shown, kind = one_line(node.sql("duckdb"), 100), "as-of" if conditions.as_of else conditions.how
            remedy = "it may have comparisons, IS NULL, +, -, *, / NULLIF(x, 0) and abs of columns and constants"
            raise UserError(f"{shown} is not supported in ON of {'an' if conditions.as_of else 'a'} {kind} join", remedy=remedy)
    if not within:
        return (None, None), after
    orders = ((LEFT, RIGHT), (RIGHT, LEFT))
    texts = [" and ".join(f"({_predicate(conditions, node, order, inner_name)})" for node in within) for order in orders]
    return (texts[0], texts[1]), after


def _predicate(conditions: Conditions, node: exp.Expr, order: tuple[int, int], inner_name: Any) -> str:
    """A condition in the language of residual predicates. order: of the sides, as the join has them."""

    def changed(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column):
            return part
        f = conditions.both.field(part)
        side = LEFT if f in conditions.names[LEFT].fields.values() else RIGHT
        return instant_of(exp.column(inner_name(f), _SIDES[order[side]], quoted=True), f)

    tree = node.copy()
    for division in filter(_safe_division, reversed(list(tree.find_all(exp.Div)))):  # the inner ones first
        division.set("expression", exp.paren(division.expression.unnest().this.copy()))
    return tree.transform(changed).sql("duckdb")


def _safe_division(node: exp.Div) -> bool:
    """Whether it is x / NULLIF(y, 0), which predicates write as x / y: there x / 0 is null."""
    by = node.expression.unnest()
    return isinstance(by, exp.Nullif) and number_of(by.expression) == 0


def _works(conditions: Conditions, sides: Sequence[Side], keys: Any, text: str) -> bool:
    """Whether a join can have a predicate."""
    sources = []
    for i, side in enumerate(sides):
        names = conditions.names[i]
        types = {column_of(f): f.type for f in side.of.fields}
        columns = []
        for name, expression in side.columns:
            kind = types.get(name) or str(bind(parse_expression(expression), names.plan_scope).type)
            columns.append(PlanColumn(name, kind))
        sources.append(Source(_SIDES[i], (*columns, PlanColumn("ts of rows", "timestamp[us]")), "ts of rows"))
    key = tuple(name for name, _ in keys[LEFT])
    try:
        join = IntervalJoin("join", *_SIDES, key, key, QueryConfig(0, 0, where=text))
        plan = LogicalPlan((*sources, join, Result("result", "join")))
        columns_of(plan, cut(plan), rows=True).stages[0].compiled_where()
    except UserError:
        return False
    return True
