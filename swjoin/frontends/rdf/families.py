"""Many queries that differ in constants alone, or in windows alone, as one query.

What: `parse_queries(texts) -> list[Family]`; `Family`, what queries of one shape ask, with a variable for each constant of a
pattern or a template in which they differ, or with the widest windows; `Parameters`, the constants' codes, and which triples
some query asks for.
Why: thousands of people ask one stream for different things. As rows of a table their constants are looked up by code, at once
for all of them, and the plan is that of one query (expression signatures of NiagaraCQ; CQELS Cloud, section 4). Windows that
nest are one join, whose rows are in the answers of the narrowest windows that hold them and of all wider ones.
Stays out: texts (`frontends.rdf.query_texts`), plans (`frontends.rdf.planner`), matching (`frontends.rdf.inputs`).

Constants of filters and aggregates are part of the shape, and so are those of queries with windows of TRIPLES, which count what
each query matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter, le
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64
from swjoin.core.errors import UserError
from swjoin.core.kernel_cache import kernel
from swjoin.frontends.rdf.algebra import Const, RdfQuery, Term, Var
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.query_texts import Texts, Windows, blocks_of, normal_windows, with_terms, with_windows

_T = TypeVar("_T")
_Nested: TypeAlias = list[tuple[tuple[int, ...], _T]]  # with their widths
_LISTS = 50  # of queries whose windows cross, that are tried for one more: the last ones
MEMBER = ":query"  # a variable that no query can have: the number of the query in its family


@dataclass(frozen=True)
class Family:
    """query: what all of them ask; of several that differ, with variables for constants, or with the widest windows. variables:
    these. constants: of each member, by variable. members: for each query that was given, by name, the member that it is.
    widths: of members that differ in their windows, microseconds of each block (`blocks_of`), ascending. widest: the query of
    another family, or of this one, whose windows contain these, and whose joins both have; None: the joins are its own."""

    query: RdfQuery
    variables: tuple[str, ...]
    constants: tuple[tuple[str, ...], ...]
    members: dict[str, int]
    widths: tuple[tuple[int, ...], ...] = ()
    widest: RdfQuery | None = None

    @property
    def count(self) -> int:
        """Of members."""
        return max(len(self.constants), len(self.widths))

    def codes(self, dictionary: TermDictionary) -> dict[str, I64]:
        """Of the constants, by variable; empty for a family with one member. Terms that the dictionary lacks are added."""
        import pyarrow as pa

        return {name: dictionary.encode(pa.array(texts, pa.large_string())) for name, texts in self._columns()}

    def apart(self) -> list[Family]:
        """Each member as a family."""
        names: dict[int, dict[str, int]] = {}
        for name, member in self.members.items():
            names.setdefault(member, {})[name] = 0
        found = []
        for member, mine in names.items():
            values = dict(zip(self.variables, map(Const, self.constants[member]), strict=True))
            query = with_terms(self.query, lambda number, values=values: values[f":{number}"])  # type: ignore[misc]
            found.append(Family(query, (), ((),), mine))
        return found

    def _columns(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        return zip(self.variables, zip(*self.constants, strict=True), strict=True)


class Parameters:
    """codes: by variable, int64 (members,). What is looked up in is made once, and may be as long as the dictionary."""

    def __init__(self, codes: dict[str, I64]) -> None:
        self.codes = codes
        self._tables: dict[str, _Values] = {}
        self._numbered: dict[tuple[str, ...], tuple[I64, I64]] = {}
        self._by_class: dict[tuple[str, ...], tuple[I64, I64]] = {}

    @property
    def count(self) -> int:
        return len(next(iter(self.codes.values())))

    def of(self, names: Iterable[str]) -> list[str]:
        """Those of the variables that are parameters."""
        return [name for name in dict.fromkeys(names) if name in self.codes]

    def asked(self, names: Sequence[str], codes: Sequence[I64]) -> tuple[I64, I64]:
        """names: of parameters. codes: a column of rows for each. The rows for which some member asks, ascending, and for each
        the number of the class of members that do, as `classes` has it."""
        first, *others = names
        rows, place = self._values(first).found(codes[0])
        for i, name in enumerate(others, 1):
            values = self._values(name)
            pairs, _ = self._pairs(names[: i + 1])
            here, found = values.found(codes[i][rows])
            wanted = place[here] * len(values.codes) + found
            at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            fits = np.flatnonzero(pairs[at] == wanted)
            rows, place = rows[here[fits]], at[fits]
        return rows, place

    def classes(self, names: Sequence[str]) -> I64:
        """Members that agree in these parameters are a class: the number of each member's."""
        return self._pairs(names)[1] if len(names) > 1 else self._values(names[0]).places

    def _values(self, name: str) -> _Values:
        if name not in self._tables:
            self._tables[name] = _Values(self.codes[name])
        return self._tables[name]

    def _pairs(self, names: Sequence[str]) -> tuple[I64, I64]:
        """Pairs of a class in all parameters but the last and a place among the values of that one, ascending, and the place of
        each member's among them."""
        key = tuple(names)
        if key not in self._numbered:
            last = self._values(names[-1])
            pairs, numbers = np.unique(self.classes(names[:-1]) * len(last.codes) + last.places, return_inverse=True)
            self._numbered[key] = pairs, numbers
        return self._numbered[key]

    def members(self, names: Sequence[str], classes: I64) -> tuple[I64, I64]:
        """For rows of these classes, a row for each member of the class: positions of rows, members."""
        key = tuple(names)
        if key not in self._by_class:
            numbers = self.classes(names)
            self._by_class[key] = np.argsort(numbers, kind="stable"), np.bincount(numbers)
        by, counts = self._by_class[key]
        if len(counts) == self.count:  # each is a class of its own
            return np.arange(len(classes)), by[classes]
        begins = np.cumsum(counts) - counts
        of_row = counts[classes]
        rows = np.repeat(np.arange(len(classes)), of_row)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(of_row) - of_row, of_row)
        return rows, by[begins[classes[rows]] + within]


class _Values:
    """The values of a parameter. codes: ascending. places: of each member's value among them."""

    def __init__(self, codes: I64) -> None:
        self.codes, self.places = np.unique(codes, return_inverse=True)
        # codes are places in a dictionary; the last one stands for all beyond
        self._index = np.full(int(self.codes[-1]) + 2, -1, np.int32)
        self._index[self.codes] = np.arange(len(self.codes), dtype=np.int32)

    def found(self, codes: I64) -> tuple[I64, I64]:
        """The rows that have one of the values, ascending, and its place for each."""
        rows, places = np.empty((2, len(codes) + 1), np.int64)
        count = _look_up(self._index, codes, rows, places)
        return rows[:count], places[:count]


@kernel
def _look_up(index: NDArray[np.int32], codes: I64, rows: I64, places: I64) -> int:
    """Fill rows and places, which have room for one more; how many there are."""
    count, last = 0, index.shape[0] - 1
    for i in range(codes.shape[0]):
        place = index[min(codes[i], last)]
        rows[count], places[count] = i, place
        count += place >= 0
    return count


# ---------------------------------------------------------------- families


def parse_queries(texts: Mapping[str, str], subjects: Mapping[str, str]) -> list[Family]:
    """Queries by name. Each is in one family. subjects: with which errors begin, by name. UserError, one line, for a query that
    is not understood."""
    known = Texts()
    of_shape: dict[tuple[str, Windows], tuple[RdfQuery, dict[tuple[str, ...], int], dict[str, int]]] = {}
    spelled: dict[int, str] = {}  # shapes of many texts
    for name, text in texts.items():
        try:
            parsed = known.parsed(text)
        except UserError as error:
            raise (error.prefixed(subjects[name]) if name in subjects else error) from None
        key = spelled.get(id(parsed.shape))
        if key is None:
            key = repr(parsed.shape)
            if known.keeps(parsed.shape):
                spelled[id(parsed.shape)] = key
        _, vectors, members = of_shape.setdefault((key, parsed.windows), (parsed.shape, {}, {}))
        members[name] = vectors.setdefault(parsed.constants, len(vectors))
    families = []
    for (_, windows), (shape, vectors, members) in of_shape.items():
        families.append(_family(with_windows(shape, windows), list(vectors), members))
    places = {name: place for place, name in enumerate(texts)}
    return sorted(_with_widths(families), key=lambda family: min(places[name] for name in family.members))


def _family(shape: RdfQuery, vectors: list[tuple[str, ...]], members: dict[str, int]) -> Family:
    """Constants that are the same for all members go back into the query; columns that are equal are one variable."""
    columns = list(zip(*vectors, strict=True))
    variables: dict[tuple[str, ...], str] = {}
    terms: list[Term] = []
    for column in columns:
        if len(set(column)) == 1:
            terms.append(Const(column[0]))
        else:
            terms.append(Var(variables.setdefault(column, f":{len(variables)}")))
    query = with_terms(shape, lambda number: terms[number])
    constants = tuple(zip(*variables, strict=True)) if variables else ((),)
    return Family(query, tuple(variables.values()), constants, members)


# ---------------------------------------------------------------- windows


def _with_widths(families: Iterable[Family]) -> Iterator[Family]:
    """With one family for all that differ in windows of RANGE alone, if these nest. Groups and DISTINCT, which depend on when
    rows die, are each query's own, over the joins of the one with the widest windows."""
    alike: dict[str, list[Family]] = {}
    for family in families:
        query = family.query
        blanks = query.template is not None and "_:" in repr(query.template)
        ranges = all(block.window.kind == "range" for block in blocks_of(query))
        if family.variables or not ranges or blanks:
            yield family
        else:
            alike.setdefault(repr(normal_windows(query)), []).append(family)
    for several in alike.values():
        if several[0].query.grouped or several[0].query.distinct:
            for inside in by_widest(several, widths_of):
                yield from inside if len(inside) == 1 else (replace(family, widest=inside[0].query) for family in inside)
            continue
        for chain in _lists(several, widths_of, lambda so_far, widths: all(map(le, so_far[-1][0], widths))):
            yield chain[0][1] if len(chain) == 1 else _nested(chain)


def by_widest(items: Iterable[_T], widths: Callable[[_T], tuple[int, ...]]) -> list[list[_T]]:
    """Items in lists; the windows of a list's first item contain those of its others. widths: of an item, of each window."""
    found = _lists(items, widths, lambda so_far, inner: all(map(le, inner, so_far[0][0])), reverse=True)
    return [[item for _, item in some] for some in found]


def _lists(
    items: Iterable[_T],
    widths: Callable[[_T], tuple[int, ...]],
    fits: Callable[[_Nested[_T], tuple[int, ...]], bool],
    *,
    reverse: bool = False,
) -> list[_Nested[_T]]:
    """Items in lists, each, in the order of its widths, in one of the last lists in which it fits."""
    found: list[_Nested[_T]] = []
    for one in sorted(((widths(item), item) for item in items), key=itemgetter(0), reverse=reverse):
        some = next((some for some in found[-_LISTS:] if fits(some, one[0])), None)
        if some is None:
            found.append([one])
        else:
            some.append(one)
    return found


def widths_of(family: Family) -> tuple[int, ...]:
    return tuple(block.window.width_us for block in blocks_of(family.query))


def _nested(chain: _Nested[Family]) -> Family:
    members = {name: number for number, (_, family) in enumerate(chain) for name in family.members}
    return Family(chain[-1][1].query, (), ((),), members, tuple(widths for widths, _ in chain))
