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
from operator import le
from typing import TypeVar

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.errors import UserError
from swjoin.frontends.rdf.algebra import Const, RdfQuery, Term, Var
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.query_texts import Texts, Windows, blocks_of, normal_windows, with_terms, with_windows

_T = TypeVar("_T")
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

    def parameters(self, dictionary: TermDictionary) -> Parameters | None:
        """None of a family with one member. Terms that the dictionary lacks are added."""
        import pyarrow as pa

        if not self.variables:
            return None
        codes = {name: dictionary.encode(pa.array(texts, pa.large_string())) for name, texts in self._columns()}
        return Parameters(codes)

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


@dataclass(frozen=True)
class Parameters:
    """codes: by variable, int64 (members,)."""

    codes: dict[str, I64]

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
        values, _ = self._values(first)
        found = _places(values, codes[0])
        rows = np.flatnonzero(found >= 0)
        place = found[rows]
        for i, name in enumerate(others, 1):
            values, _ = self._values(name)
            pairs, _ = self._pairs(names[: i + 1])
            found = _places(values, codes[i][rows])
            wanted = place * len(values) + found
            at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            fits = np.flatnonzero((found >= 0) & (pairs[at] == wanted))
            rows, place = rows[fits], at[fits]
        return rows, place

    def classes(self, names: Sequence[str]) -> I64:
        """Members that agree in these parameters are a class: the number of each member's."""
        return self._pairs(names)[1] if len(names) > 1 else self._values(names[0])[1]

    def _values(self, name: str) -> tuple[I64, I64]:
        """The values of a parameter, and the place of each member's among them."""
        values, places = np.unique(self.codes[name], return_inverse=True)
        return values, places

    def _pairs(self, names: Sequence[str]) -> tuple[I64, I64]:
        """As `_values`, of the pairs of a class in all parameters but the last and a place among the values of that one."""
        values, places = self._values(names[-1])
        pairs, numbers = np.unique(self.classes(names[:-1]) * len(values) + places, return_inverse=True)
        return pairs, numbers

    def members(self, names: Sequence[str], classes: I64) -> tuple[I64, I64]:
        """For rows of these classes, a row for each member of the class: positions of rows, members."""
        numbers = self.classes(names)
        by = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers)
        if len(counts) == self.count:  # each is a class of its own
            return np.arange(len(classes)), by[classes]
        begins = np.cumsum(counts) - counts
        of_row = counts[classes]
        rows = np.repeat(np.arange(len(classes)), of_row)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(of_row) - of_row, of_row)
        return rows, by[begins[classes[rows]] + within]


def _places(values: I64, codes: I64) -> I64:
    """Of codes among ascending values; -1 for others. Codes are places in a dictionary, so the index is an array."""
    index = np.full(int(values[-1]) + 2, -1, np.int32)
    index[values] = np.arange(len(values), dtype=np.int32)
    return index[np.minimum(codes, len(index) - 1)].astype(np.int64)


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
    return list(_with_widths(families))


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
        chains: list[list[Family]] = []
        for family in sorted(several, key=widths_of):
            chain = next((c for c in chains if all(map(le, widths_of(c[-1]), widths_of(family)))), None)
            if chain is None:
                chains.append([family])
            else:
                chain.append(family)
        yield from (chain[0] if len(chain) == 1 else _nested(chain) for chain in chains)


def by_widest(items: Iterable[_T], widths: Callable[[_T], tuple[int, ...]]) -> list[list[_T]]:
    """Items in lists; the windows of a list's first item contain those of its others. widths: of an item, of each window."""
    found: list[list[_T]] = []
    for item in sorted(items, key=widths, reverse=True):
        first = next((one for one in found if all(map(le, widths(item), widths(one[0])))), None)
        if first is None:
            found.append([item])
        else:
            first.append(item)
    return found


def widths_of(family: Family) -> tuple[int, ...]:
    return tuple(block.window.width_us for block in blocks_of(family.query))


def _nested(chain: Sequence[Family]) -> Family:
    members = {name: number for number, family in enumerate(chain) for name in family.members}
    return Family(chain[-1].query, (), ((),), members, tuple(map(widths_of, chain)))
