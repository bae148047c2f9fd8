"""Comparing bags of rows of RDF terms, where the spelling of computed numbers, ties and blank nodes is free.

What: `same_rows(found, expected)`; `Computed` and `AnyOf`, cells of expected rows.
Why: engines spell the same decimal in several ways, and any of `1` and `01` is the least; rows of data stay exact.
Stays out: what rows are expected (`tests.tools.rdf_oracle`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.tools.rdf_expressions import NUMBERS, parse_term, to_text, value_of

TRIES = 300


class Computed(str):
    """A term that an expression made: a number of this datatype and value."""

    __slots__ = ()


class AnyOf(str):
    """Any of several terms, the text is the first. choices: their texts, or `Computed`."""

    choices: tuple[str, ...]

    def __new__(cls, choices: Sequence[str]) -> AnyOf:
        made = super().__new__(cls, choices[0])
        made.choices = tuple(choices)
        return made


Cell = str | int | None
Row = dict[str, Cell]


def canonical(cell: Cell) -> Cell:
    """One spelling of a term: no `xsd:string`, no needless escapes."""
    if isinstance(cell, AnyOf):
        return AnyOf([_canonical_text(choice) for choice in cell.choices])
    return _canonical_text(cell) if isinstance(cell, str) else cell


def _canonical_text(cell: str) -> str:
    text = to_text(parse_term(cell))
    return Computed(text) if isinstance(cell, Computed) else text


def same_cell(found: Cell, wanted: Cell) -> bool:
    """Whether a canonical cell is what is expected."""
    if isinstance(wanted, AnyOf):
        if isinstance(found, str) and found.startswith("_:"):
            return any(choice.startswith("_:") for choice in wanted.choices)
        return any(same_cell(found, choice) for choice in wanted.choices)
    if not isinstance(wanted, Computed) or not isinstance(found, str):
        return found == wanted
    a, b = parse_term(found), parse_term(wanted)
    (kind, x), (kind_b, y) = value_of(a), value_of(b)
    if kind not in NUMBERS or kind != kind_b or a.datatype != b.datatype:
        return found == wanted
    if kind == "integer":
        return bool(x == y)
    tolerance = 1e-6 if kind == "float" else 1e-12
    if kind == "decimal":
        return bool(abs(x - y) * 10**12 <= max(abs(x), abs(y)))
    return (math.isnan(x) and math.isnan(y)) or x == y or math.isclose(x, y, rel_tol=tolerance)


def _is_free(cell: Cell) -> bool:
    """Whether the text of an expected cell does not decide alone."""
    return isinstance(cell, AnyOf) or (isinstance(cell, Computed) and value_of(parse_term(cell))[0] in NUMBERS)


def _matched(found: Sequence[Row], wanted: Sequence[Row], free: set[str]) -> bool:
    """Whether rows of one signature can be paired (augmenting paths)."""
    names, partner = sorted(free), dict[int, int]()
    texts = [Counter(_text(row, names) for row in rows) for rows in (found, wanted)]
    same = texts[0] & texts[1]  # rows of one text are alike, whatever else they may be
    found, wanted = (_without(rows, names, Counter(same)) for rows in (found, wanted))
    fits = [[all(same_cell(row[name], want[name]) for name in names) for want in wanted] for row in found]

    def place(i: int, seen: set[int]) -> bool:
        for j in range(len(wanted)):
            if fits[i][j] and j not in seen:
                seen.add(j)
                if j not in partner or place(partner[j], seen):
                    partner[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(found)))


def _text(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """What a row says in some columns; cells with a choice say nothing that another row says."""
    cells = [row[name] for name in names]
    return tuple(repr(c.choices) if isinstance(c, AnyOf) and len(c.choices) > 1 else str(c) for c in cells)


def _without(rows: Sequence[Row], names: Sequence[str], left_out: Counter[tuple[str, ...]]) -> list[Row]:
    """The rows, but some of each text."""
    kept = []
    for row in rows:
        text = _text(row, names)
        left_out[text] -= 1
        if left_out[text] < 0:
            kept.append(row)
    return kept


def _difference(found: Sequence[Row], wanted: Sequence[Row]) -> str | None:
    """The first difference of canonical rows, blank nodes by label."""
    free = {name for row in wanted for name, cell in row.items() if _is_free(cell)}
    sides: tuple[dict[Any, list[Row]], dict[Any, list[Row]]] = defaultdict(list), defaultdict(list)
    for side, rows in zip(sides, (found, wanted), strict=True):
        for row in rows:
            side[tuple(sorted((name, "" if name in free else str(cell)) for name, cell in row.items()))].append(row)
    for signature in sorted({*sides[0], *sides[1]}):
        mine, theirs = (side.get(signature, []) for side in sides)
        if len(mine) != len(theirs) or not _matched(mine, theirs, free):
            extra = [dict(row) for row in mine if not any(_fits(row, want) for want in theirs)] or mine
            missing = [
                dict(row) for row in theirs if not any(_fits(row, want) for row, want in zip(mine, theirs, strict=False))
            ]
            return f"{len(mine)} rows for {len(theirs)}: found {extra[:3]}, expected {(missing or theirs)[:3]}"
    return None


def _fits(row: Row, wanted: Row) -> bool:
    return all(same_cell(row[name], cell) for name, cell in wanted.items())


def _blanks(rows: Iterable[Row]) -> set[str]:
    return {cell for row in rows for cell in row.values() if isinstance(cell, str) and cell.startswith("_:")}


def _renamed(rows: Sequence[Row], names: Mapping[str, str]) -> list[Row]:
    return [
        {key: names.get(cell, cell) if isinstance(cell, str) and not _is_free(cell) else cell for key, cell in row.items()}
        for row in rows
    ]


def _refined(rows: Sequence[Row], colours: Mapping[str, str], free: set[str]) -> dict[str, str]:
    """Labels by the rows they stand in, until nothing more is told apart."""
    colours = dict(colours)
    for _ in range(len(colours) + 1):
        seen: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            cells = {key: "~" if key in free else colours.get(str(cell), str(cell)) for key, cell in row.items()}
            for key, cell in row.items():
                if key not in free and cell in colours:
                    own = sorted((k, "self" if k not in free and row[k] == cell else c) for k, c in cells.items())
                    seen[str(cell)].append(f"{key}{own}")
        after = {label: f"_:{hash((colours[label], tuple(sorted(seen[label]))))}" for label in colours}
        if len(set(after.values())) == len(set(colours.values())):
            return after
        colours = after
    return colours


def same_rows(found: Sequence[Mapping[str, Any]], expected: Sequence[Row]) -> str | None:
    """None when two bags of rows are the same, else their first difference.

    Terms are compared as terms; computed numbers by datatype and value (doubles and decimals within a part of 1e-12, floats
    1e-6); ties of MIN and MAX by any of them; blank nodes up to a renaming that is consistent over all rows."""
    mine = [{key: canonical(cell) for key, cell in row.items()} for row in found]
    theirs = [{key: canonical(cell) for key, cell in row.items()} for row in expected]
    names = Counter(tuple(sorted(row)) for row in [*mine, *theirs])
    if len(names) > 1:
        return f"columns differ: {sorted(names)}"
    free = {key for row in theirs for key, cell in row.items() if _is_free(cell)}
    start = [
        dict.fromkeys(_blanks({k: c for k, c in row.items() if k not in free} for row in side), "_:") for side in (mine, theirs)
    ]
    if not start[0] and not start[1]:
        return _difference(mine, theirs)
    tries = [TRIES]
    return _renamed_difference(mine, theirs, start[0], start[1], tries)


def _undecided(rows: Sequence[Row], colours: Mapping[str, str], free: set[str]) -> list[str]:
    """Labels that share a colour, and a row with others that do: all else is paired by colour."""
    classes = Counter(colours.values())
    found: set[str] = set()
    for row in rows:
        labels = {str(cell) for key, cell in row.items() if key not in free and classes[colours.get(str(cell), "")] > 1}
        found |= labels if len(labels) > 1 else set()
    return sorted(found)


def _renamed_difference(
    mine: Sequence[Row], theirs: Sequence[Row], ours: Mapping[str, str], others: Mapping[str, str], tries: list[int]
) -> str | None:
    """The difference under the best renaming that agrees with the colours of labels. tries: how many are left, in one cell."""
    free = {key for row in theirs for key, cell in row.items() if _is_free(cell)}
    ours, others = _refined(mine, ours, free), _refined(theirs, others, free)
    difference = _difference(_renamed(mine, ours), _renamed(theirs, others))
    tries[0] -= 1
    alike = _undecided(theirs, others, free)
    if difference or not alike or tries[0] < 0:
        return difference
    for label in sorted(ours):
        if ours[label] == others[alike[0]]:
            told = f"_:told{tries[0]}"
            difference = _renamed_difference(mine, theirs, {**ours, label: told}, {**others, alike[0]: told}, tries)
            if difference is None or tries[0] < 0:
                return difference
    return difference
