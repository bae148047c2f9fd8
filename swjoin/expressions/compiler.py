"""Compiler of predicates: a tree -> a program over packed rows; resolves names and checks types.

What: `resolve`, name -> side and column; `type_of`, the type in which a column is compared; `compile_where(node, left, right)
-> Program`; `compile_text`.
Why: compilation needs the names of columns and their locations in packed rows.
Stays out: parsing (`expressions.parser`), evaluation (`expressions.vm`).

A name is an output column (`price`, or `left_price` where both sides have a `price`), or one of `left.price`, `right.price`,
`left_price`, `right_price` in any case.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.row_codec import StreamCodec
from swjoin.core.sequence_numbers import TIME_OFFSET
from swjoin.expressions import vm as p
from swjoin.expressions.parser import COMPARISONS, Node, parse_where

if TYPE_CHECKING:
    import pyarrow as pa

_ARITHMETIC = {"+": (p.ADD, p.ADD_FLOAT), "-": (p.SUBTRACT, p.SUBTRACT_FLOAT), "*": (p.MULTIPLY, p.MULTIPLY_FLOAT)}
# comparison -> (instruction, whether the operands are swapped, whether the result is negated)
_ORDER = {
    "=": (p.EQUAL, False, False),
    "!=": (p.EQUAL, False, True),
    "<": (p.LESS, False, False),
    "<=": (p.LESS_EQUAL, False, False),
    ">": (p.LESS, True, False),
    ">=": (p.LESS_EQUAL, True, False),
}


def resolve(
    name: str, columns: tuple[Sequence[str], Sequence[str]], keys: tuple[Sequence[str], Sequence[str]]
) -> tuple[int, str]:
    """(side, column) of a name. UserError for an unknown or ambiguous name. columns, keys: names on both sides."""
    found: list[tuple[int, str]] = []
    for side, prefix in enumerate(STREAM_NAMES):
        for column in columns[side]:
            if name in (f"{prefix}.{column}", f"{prefix}_{column}"):
                found.append((side, column))
    for side in (LEFT, RIGHT):
        clash = name in columns[1 - side] and not (name in keys[LEFT] and name in keys[RIGHT])
        if name in columns[side] and not clash and not (side == RIGHT and name in keys[LEFT]):
            found.append((side, name))
    if len(found) == 1:
        return found[0]
    if not found and name in columns[LEFT]:
        raise UserError(f"where: both sides have a column {name}; write left_{name} or right_{name}")
    if found:
        raise UserError(f"where: {name} may mean {' or '.join(f'{STREAM_NAMES[s]}.{c}' for s, c in found)}; write that")
    known = [*(f"left_{c}" for c in columns[LEFT]), *(f"right_{c}" for c in columns[RIGHT])]
    near = difflib.get_close_matches(name, [*known, *columns[LEFT], *columns[RIGHT]], 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)[:500]}"
    raise UserError(f"where: column {name} is missing; {hint}")


class _Compiler:
    def __init__(self, codecs: tuple[StreamCodec, StreamCodec], *, count_windows: bool) -> None:
        self._codecs = codecs
        self._count_windows = count_windows
        self._names = tuple([name for name, _, _ in codec.columns] for codec in codecs)
        self.code: list[int] = []
        self.floats: list[float] = []
        self.text = b""
        self.tails: list[int] = []
        self._depth = self._deepest = 0
        self._types: dict[int, str] = {}

    def _emit(self, what: int, *fields: int, grows: int = 0) -> None:
        self.code += [what, *fields, *[0] * (p.WIDTH - 1 - len(fields))]
        self._depth += grows
        self._deepest = max(self._deepest, self._depth)
        if self._deepest > p.DEEPEST:
            raise UserError("where: too many values at once; write it with fewer parentheses")

    def whole(self, node: Node) -> p.Program:
        kind = self.value(node)
        if kind not in ("bool", "null"):
            raise UserError(f"where: it must be a condition, but it is {_described(kind)}")
        text = np.frombuffer(self.text, np.uint8).copy()
        return p.Program(np.array(self.code, np.int64), np.array(self.floats), text, np.array(self.tails, np.int64))

    # ------------------------------------------------------------ values: each method pushes one and returns its type

    def value(self, node: Node) -> str:
        match node.kind:
            case "column":
                return self._column(node.value)
            case "number":
                return self._number(node.value)
            case "text":
                data = node.value.encode()
                self._emit(p.TEXT_LITERAL, 0, len(self.text), len(data), grows=1)
                self.text += data
                return "text"
            case "true" | "false":
                self._emit(p.INT_LITERAL, 0, int(node.kind == "true"), grows=1)
                return "bool"
            case "null":
                self._emit(p.NULL, grows=1)
                return "null"
            case "and" | "or":
                for part in node.parts:
                    self._condition(part, node.kind)
                self._emit(p.AND if node.kind == "and" else p.OR, grows=-1)
                return "bool"
            case "not":
                self._condition(node.parts[0], "not")
                self._emit(p.NOT)
                return "bool"
            case "is null":
                self.value(node.parts[0])
                self._emit(p.IS_NULL)
                return "bool"
            case "negative" | "abs":
                kind = self._numeric(node.parts[0], node.kind)
                integer, real = (p.NEGATE, p.NEGATE_FLOAT) if node.kind == "negative" else (p.ABS, p.ABS_FLOAT)
                self._emit(real if kind == "float" else integer)
                return kind
            case sign if sign in COMPARISONS:
                return self._comparison(node)
            case _:
                return self._arithmetic(node)

    def _number(self, text: str) -> str:
        if text.isdigit():
            if len(text.lstrip("0")) > 19 or int(text) >= 1 << 63:  # Python refuses to convert very many digits
                raise UserError(f"where: {text[:60]} is beyond 64 bits")
            self._emit(p.INT_LITERAL, 0, int(text), grows=1)
            return "int"
        self._emit(p.FLOAT_LITERAL, 0, len(self.floats), grows=1)
        self.floats.append(float(text))
        return "float"

    def _column(self, name: str) -> str:
        side, column, kind = self._find(name)
        codec = self._codecs[side]
        origin = next(origin for found, _, origin in codec.columns if found == column)
        if origin == "key":
            self._emit(p.KEY_OF, grows=1)
        elif origin == "ts" and self._count_windows:
            payload_bytes = 0 if codec.layout is None else codec.layout.fixed_bytes
            self._emit(p.INT, side, payload_bytes + TIME_OFFSET, 8, -1, grows=1)
        elif origin == "ts":
            self._emit(p.TIME_OF, side, grows=1)
        else:
            assert codec.rows is not None
            slot = codec.rows.slot_of(column)
            if kind == "text":
                self._emit(p.TEXT, side, slot.offset, len(self.tails), slot.null_bit, len(slot.before), grows=1)
                self.tails += slot.before
            else:
                what = p.FLOAT if kind == "float" else p.INT
                signed = kind != "bool" and not str(codec.rows.schema.field(column).type).startswith("uint")
                self._emit(what, side, slot.offset, slot.width if signed else -slot.width, slot.null_bit, grows=1)
        return kind

    def _condition(self, node: Node, where: str) -> None:
        kind = self.value(node)
        if kind not in ("bool", "null"):
            raise UserError(f"where: {where} is between conditions, not {_described(kind)}")

    def _numeric(self, node: Node, sign: str) -> str:
        kind = self.value(node)
        if kind not in ("int", "float", "null"):
            raise UserError(f"where: {sign} is of numbers, not of {_described(kind)}")
        return "int" if kind == "null" else kind

    def _pair(self, node: Node, *, real: bool) -> str:
        """Push both operands as numbers of one type."""
        kinds = []
        for part, other in ((node.parts[0], node.parts[1]), (node.parts[1], node.parts[0])):
            kind = self._numeric(part, node.kind)
            if kind == "int" and (real or self._type(other) == "float"):
                self._emit(p.TO_FLOAT)
                kind = "float"
            kinds.append(kind)
        return kinds[0]

    def _type(self, node: Node) -> str:
        """The type of a value, without instructions and checks."""
        if id(node) not in self._types:
            self._types[id(node)] = self._found_type(node)
        return self._types[id(node)]

    def _found_type(self, node: Node) -> str:
        match node.kind:
            case "column":
                return self._find(node.value)[2]
            case "number":
                return "int" if node.value.isdigit() else "float"
            case "text" | "null":
                return node.kind
            case "/":
                return "float"
            case "+" | "-" | "*" | "negative" | "abs":
                return "float" if "float" in {self._type(part) for part in node.parts} else "int"
            case _:
                return "bool"

    def _find(self, name: str) -> tuple[int, str, str]:
        """Side, column and type of a name."""
        codecs = self._codecs
        side, column = resolve(name, (self._names[LEFT], self._names[RIGHT]), (codecs[LEFT].key, codecs[RIGHT].key))
        kind = next(kind for found, kind, _ in codecs[side].columns if found == column)
        return side, column, type_of(name, kind)

    def _arithmetic(self, node: Node) -> str:
        kind = self._pair(node, real=node.kind == "/")
        integer, real = _ARITHMETIC.get(node.kind, (p.DIVIDE, p.DIVIDE))
        self._emit(real if kind == "float" else integer, grows=-1)
        return kind

    def _comparison(self, node: Node) -> str:
        what, swapped, negated = _ORDER[node.kind]
        left, right = node.parts[::-1] if swapped else node.parts
        kinds = self._type(left), self._type(right)
        known = {kind for kind in kinds if kind != "null"}
        if known <= {"int", "float"}:
            kind = self._pair(Node(node.kind, parts=(left, right)), real=False)
        elif len(known) > 1:
            raise UserError(f"where: {_described(kinds[0])} and {_described(kinds[1])} cannot be compared with {node.kind}")
        else:
            self.value(left)
            self.value(right)
            (kind,) = known
        self._emit(what + (3 if kind == "float" else 6 if kind == "text" else 0), grows=-1)
        if negated:
            self._emit(p.NOT)
        return "bool"


def _described(kind: str) -> str:
    return {"bool": "a truth value", "int": "a number", "float": "a number", "text": "text", "null": "null"}.get(kind, kind)


def type_of(name: str, kind: pa.DataType) -> str:
    """int, float, bool, text, or the name of a type that compares with itself only. UserError for all others."""
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return type_of(name, kind.value_type)
    if t.is_boolean(kind):
        return "bool"
    if t.is_integer(kind) and not t.is_uint64(kind):
        return "int"
    if t.is_float32(kind) or t.is_float64(kind):
        return "float"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "text"
    if t.is_timestamp(kind) or t.is_date(kind) or t.is_time(kind) or t.is_duration(kind):
        return str(kind)
    raise UserError(f"where: column {name} is {kind}, which cannot be used there")


def compile_where(node: Node, left: StreamCodec, right: StreamCodec, *, count_windows: bool = False) -> p.Program:
    """UserError for a missing column or incompatible types. counted: rows have sequence numbers (`core.sequence_numbers`)."""
    return _Compiler((left, right), count_windows=count_windows).whole(node)


def compile_text(where: str | None, left: StreamCodec, right: StreamCodec, *, count_windows: bool) -> p.Program | None:
    """The program of a predicate for rows of these codecs; None without a predicate. UserError for incompatible types."""
    return None if where is None else compile_where(parse_where(where), left, right, count_windows=count_windows)
