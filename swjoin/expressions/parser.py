"""Parser of residual predicates: `left_price < right_price and not right.cancelled`.

What: `parse_where(text) -> Node`, `columns_of`, `to_sql`, `to_text`.
Why: a predicate is text, because it is part of a configuration; it is never evaluated as Python.
Stays out: existing columns and their types (`expressions.compiler`), evaluation (`expressions.vm`).

Grammar, as in SQL: or, and, not; =, !=, <>, <, <=, >, >=, is [not] null; + and -, * and /; -x, abs(x), parentheses; numbers,
'text', true, false, null; columns as `name`, `left.name`, `right.name`, or in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from swjoin.core.errors import UserError
from swjoin.core.units import is_utf8

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>(?:[^\W\d]\w*|"(?:[^"]|"")+")(?:\.(?:[^\W\d]\w*|"(?:[^"]|"")+"))?)
    |(?P<sign><=|>=|<>|!=|==|[-=<>+*/()]))""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "not", "is", "null", "true", "false", "abs"}
_MOST_CHARACTERS, _DEEPEST, _LONGEST = 10_000, 50, 50  # nesting, and terms in a row: both use Python's stack
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Node:
    """kind: `column` (value: the name as written, without quotes), `number`, `text`, `true`, `false`, `null`, or an operation
    on `parts`: and, or, not, is null, a comparison, +, -, *, /, negative, abs."""

    kind: str
    value: str = ""
    parts: tuple[Node, ...] = ()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"{text[at:].strip()[:20]!r} is not understood", at)
            kind = str(match.lastgroup)
            token, start = match[kind], match.start(kind)
            if kind == "name" and token.lower() in _WORDS:
                kind, token = "word", token.lower()
            token = {"==": "=", "<>": "!="}.get(token, token)
            self._tokens.append((kind, token, start))
            at = match.end()
        self._next = 0
        self._depth = 0

    def _error(self, what: str, at: int | None = None) -> UserError:
        position = len(self._text) if at is None else at
        return UserError(f"where: {what}, at character {position + 1} of {self._text[:200]!r}")

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "", len(self._text))

    def _take(self, *wanted: str) -> str | None:
        """Consume and return the next token if it is one of these signs or words."""
        kind, token, _ = self._peek()
        if kind in ("sign", "word") and token in wanted:
            self._next += 1
            return token
        return None

    def whole(self) -> Node:
        node = self._or()
        kind, token, at = self._peek()
        if kind != "end":
            raise self._error(f"{token!r} is unexpected", at)
        return node

    def _chain(self, part: Callable[[], Node], *signs: str) -> Node:
        node, links = part(), 0
        while (sign := self._take(*signs)) is not None:
            node, links = Node(sign, parts=(node, part())), links + 1
            if links > _LONGEST:
                raise self._error(f"more than {_LONGEST} of {' and '.join(signs)} in a row", self._peek()[2])
        return node

    def _conditions(self, part: Callable[[], Node], sign: str) -> Node:
        """Any number of conditions in a row, as a balanced tree."""
        nodes = [part()]
        while self._take(sign):
            nodes.append(part())
        while len(nodes) > 1:
            pairs = [Node(sign, parts=(one, two)) for one, two in zip(nodes[::2], nodes[1::2], strict=False)]
            nodes = pairs + nodes[2 * len(pairs) :]
        return nodes[0]

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("too deeply nested", self._peek()[2])
        node = self._conditions(self._and, "or")
        self._depth -= 1
        return node

    def _and(self) -> Node:
        return self._conditions(self._not, "and")

    def _not(self) -> Node:
        count = 0
        while self._take("not"):
            count += 1
        node = self._comparison()
        return Node("not", parts=(node,)) if count % 2 else node

    def _comparison(self) -> Node:
        node = self._sum()
        sign = self._take(*COMPARISONS)
        if sign is not None:
            return Node(sign, parts=(node, self._sum()))
        if self._take("is"):
            negated = self._take("not")
            if not self._take("null"):
                raise self._error("'is' needs [not] null after it", self._peek()[2])
            node = Node("is null", parts=(node,))
            return Node("not", parts=(node,)) if negated else node
        return node

    def _sum(self) -> Node:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Node:
        return self._chain(self._single, "*", "/")

    def _single(self) -> Node:
        minus = 0
        while self._take("-"):
            minus += 1
        node = self._atom()
        return Node("negative", parts=(node,)) if minus % 2 else node

    def _atom(self) -> Node:
        kind, token, at = self._peek()
        self._next += 1
        if kind == "number":
            return Node("number", token)
        if kind == "text":
            return Node("text", token[1:-1].replace("''", "'"))
        if kind == "name":
            return Node("column", ".".join(_unquoted(part) for part in _split(token)))
        if (kind, token) == ("sign", "("):
            node = self._or()
        elif (kind, token) == ("word", "abs") and self._take("("):
            node = Node("abs", parts=(self._or(),))
        elif kind == "word" and token in ("true", "false", "null"):
            return Node(token)
        else:
            raise self._error("it ends too early" if kind == "end" else f"{token!r} is unexpected", at)
        if not self._take(")"):
            raise self._error("a closing parenthesis is missing", self._peek()[2])
        return node


def _split(name: str) -> list[str]:
    return re.findall(r'"(?:[^"]|"")+"|[^."]+', name)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def parse_where(text: str) -> Node:
    """The tree of a predicate. UserError with the position of a syntax error."""
    if len(text) > _MOST_CHARACTERS:
        raise UserError(f"where: {len(text)} characters are too many, {_MOST_CHARACTERS} at most")
    if not is_utf8(text):
        raise UserError(f"where: {text!a} is not UTF-8")
    return _Parser(text).whole()


def columns_of(node: Node) -> Iterator[str]:
    """Names of all columns, as written."""
    if node.kind == "column":
        yield node.value
    for part in node.parts:
        yield from columns_of(part)


def to_text(node: Node, name: Callable[[str], str]) -> str:
    """The predicate as text with renamed columns. name: column as written -> its new name."""
    parts = [to_text(part, name) for part in node.parts]
    match node.kind:
        case "column":
            return name(node.value)
        case "number" | "true" | "false" | "null":
            return node.value or node.kind
        case "text":
            return "'" + node.value.replace("'", "''") + "'"
        case "not":
            return f"(not {parts[0]})"
        case "is null":
            return f"({parts[0]} is null)"
        case "negative" | "abs":
            return f"{'-' if node.kind == 'negative' else 'abs'}({parts[0]})"
        case sign:
            return f"({parts[0]} {sign} {parts[1]})"


Kind = Literal["int", "float", "bool", "text", "null", "other"]
Dialect = Literal["duckdb", "spark"]
_PRODUCT = "BETWEEN -9199999999999999999 AND 9199999999999999999"  # the range of products in `expressions.vm`
# 64-bit integers, null on overflow; each operand occurs once, because expressions may be nested deeply
_INTEGER_SQL: dict[Dialect, dict[str, str]] = {
    "duckdb": {
        "+": "TRY({} + {})",
        "-": "TRY({} - {})",
        "*": f"list_extract(list_filter([TRY({{}} * {{}})], lambda p: p {_PRODUCT}), 1)",
        "negative": "TRY(-{})",
        "abs": "TRY(abs({}))",
    },
    "spark": {
        "+": "try_add({}, {})",
        "-": "try_subtract({}, {})",
        "*": f"get(filter(array(try_multiply({{}}, {{}})), p -> p {_PRODUCT}), 0)",
        "negative": "try_subtract(0L, {})",
        "abs": "abs(nullif({}, -9223372036854775808))",
    },
}
_FLOAT_SQL = {"+": "({} + {})", "-": "({} - {})", "*": "({} * {})", "negative": "(-{})", "abs": "abs({})"}


def to_sql(node: Node, column: Callable[[str], tuple[str, Kind]], dialect: Dialect) -> str:
    """The predicate in another engine's SQL, with the semantics of `expressions.vm`.

    DuckDB and Spark treat NaN as equal to itself and as the greatest number, and have integers of fewer than 64 bits. In swjoin
    floats compare by IEEE 754, and all integers have 64 bits.

    column: column as written -> its expression and kind. The translation casts numbers to 64 bits.
    """
    return _Translation(column, dialect).value(node)[0]


class _Translation:
    """Each method returns an expression and its kind."""

    def __init__(self, column: Callable[[str], tuple[str, Kind]], dialect: Dialect) -> None:
        self._column = column
        self._dialect = dialect

    def value(self, node: Node) -> tuple[str, Kind]:
        match node.kind:
            case "column":
                text, kind = self._column(node.value)
                return (_cast(text, kind) if kind in ("int", "float") else text), kind
            case "number":
                if node.value.isdigit():
                    return _cast(node.value, "int"), "int"
                return _cast(f"'{float(node.value)!r}'", "float"), "float"
            case "text":
                return self._text(node.value), "text"
            case "true" | "false":
                return node.kind.upper(), "bool"
            case "null":
                return "NULL", "null"
            case "not":
                return f"(NOT {self.value(node.parts[0])[0]})", "bool"
            case "is null":
                return f"({self.value(node.parts[0])[0]} IS NULL)", "bool"
            case "and" | "or":
                one, two = (self.value(part)[0] for part in node.parts)
                return f"({one} {node.kind.upper()} {two})", "bool"
            case sign if sign in COMPARISONS:
                return self._comparison(node), "bool"
            case _:
                return self._arithmetic(node)

    def _text(self, text: str) -> str:
        if self._dialect == "spark":  # backslashes escape; a doubled quote works in some versions only
            return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return "'" + text.replace("'", "''") + "'"

    def _numbers(self, node: Node) -> tuple[list[str], Kind]:
        """The operands, as numbers of one kind."""
        found = [self.value(part) for part in node.parts]
        common: Kind = "float" if node.kind == "/" or any(kind == "float" for _, kind in found) else "int"
        return [text if kind == common else _cast(text, common) for text, kind in found], common

    def _arithmetic(self, node: Node) -> tuple[str, Kind]:
        operands, kind = self._numbers(node)
        if node.kind == "/":
            return "({} / nullif({}, 0))".format(*operands), kind
        forms = _FLOAT_SQL if kind == "float" else _INTEGER_SQL[self._dialect]
        return forms[node.kind].format(*operands), kind

    def _comparison(self, node: Node) -> str:
        found = [self.value(part) for part in node.parts]
        if all(kind != "float" for _, kind in found):
            return f"({found[0][0]} {node.kind} {found[1][0]})"
        (one, two), _ = self._numbers(node)
        guarded = [
            text
            for text, (_, kind), part in zip((one, two), found, node.parts, strict=True)
            if kind == "float" and part.kind != "number"
        ]
        if not guarded:
            return f"({one} {node.kind} {two})"
        # null first: a comparison of null with NaN is null
        nan = " OR ".join(f"isnan({text})" for text in guarded)
        answer = "TRUE" if node.kind == "!=" else "FALSE"
        return f"(CASE WHEN {one} IS NULL OR {two} IS NULL THEN NULL WHEN {nan} THEN {answer} ELSE {one} {node.kind} {two} END)"


def _cast(text: str, kind: Kind) -> str:
    return f"CAST({text} AS {'DOUBLE' if kind == 'float' else 'BIGINT'})"
