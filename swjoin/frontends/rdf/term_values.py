"""What RDF terms mean: their kinds, values and order, by code.

What: `TermValues`.
Why: FILTER, BIND and aggregates need numbers, times and text, while joins need codes alone; values are computed once a term,
not once a row.
Stays out: codes (`frontends.rdf.dictionary`), the expressions that read the values.

A literal whose lexical form its type does not have is ill-typed, and `OTHER`; so is one of an unknown type. Numbers are the
nearest doubles; a float is not rounded to 24 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from swjoin.core.batch import I64, U8, Bool
from swjoin.core.kernel_cache import kernel
from swjoin.frontends.rdf.dictionary import (
    DECIMAL,
    DOUBLE,
    F64,
    FLOAT,
    I8,
    INTEGER,
    LANG_STRING,
    STRING,
    XSD,
    TermDictionary,
    unescape,
)

if TYPE_CHECKING:
    import pyarrow as pa

IRI, BLANK, SIMPLE, TAGGED, NUMERIC, BOOLEAN, TIME, OTHER = range(8)
_TYPED = 7  # of a literal with a datatype, before it is looked at
_TWO = 1 << 31
# The integer types: the least and the greatest value, None for no bound.
_RANGES: dict[str, tuple[int | None, int | None]] = {
    "integer": (None, None),
    "nonPositiveInteger": (None, 0),
    "negativeInteger": (None, -1),
    "long": (-(1 << 63), (1 << 63) - 1),
    "int": (-_TWO, _TWO - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "byte": (-128, 127),
    "nonNegativeInteger": (0, None),
    "positiveInteger": (1, None),
    "unsignedLong": (0, (1 << 64) - 1),
    "unsignedInt": (0, 2 * _TWO - 1),
    "unsignedShort": (0, (1 << 16) - 1),
    "unsignedByte": (0, 255),
}
_INTEGER_FORM = re.compile(r"[+-]?[0-9]+")
_DECIMAL_FORM = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_DOUBLE_FORM = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?INF|NaN")
_LONGEST = 4000  # digits that Python converts; longer integers are told apart by their sign and their text
_EXACT_DIGITS = 15  # of a decimal that a double tells apart from all others of as many


# ---------------------------------------------------------------- kernels


@kernel
def _split(data, offsets, kinds, bounds):  # type: ignore[no-untyped-def]
    """Kinds of terms, and bounds (n, 4): start and stop of the lexical form, IRI or label, and of language tag or datatype."""
    for i in range(kinds.shape[0]):
        start, stop = offsets[i], offsets[i + 1]
        bounds[i, 2] = bounds[i, 3] = stop
        if data[start] == 60:  # <
            kinds[i], bounds[i, 0], bounds[i, 1] = 0, start + 1, stop - 1
        elif data[start] == 95:  # _
            kinds[i], bounds[i, 0], bounds[i, 1] = 1, start + 2, stop
        else:
            quote = stop - 1
            while quote > start and data[quote] != 34:
                quote -= 1
            bounds[i, 0], bounds[i, 1] = start + 1, max(quote, start + 1)
            if quote + 1 == stop:
                kinds[i] = 2
            elif data[quote + 1] == 64:  # @
                kinds[i], bounds[i, 2] = 3, quote + 2
            else:
                kinds[i], bounds[i, 2], bounds[i, 3] = 7, min(quote + 4, stop), stop - 1


@kernel
def _copy(data, starts, stops, out, offsets):  # type: ignore[no-untyped-def]
    """Copy data[starts[i] : stops[i]] one behind the other; returns whether any has a backslash."""
    n, escaped = 0, False
    for i in range(starts.shape[0]):
        for at in range(starts[i], stops[i]):
            out[n] = data[at]
            escaped |= data[at] == 92
            n += 1
        offsets[i + 1] = n
    return escaped


@kernel
def _number(data, at, stop, least):  # type: ignore[no-untyped-def]
    """The integer of at least so many digits at `at`, and where it ends; -1 when there is none, or more than 17 digits."""
    value, first = np.int64(0), at
    while at < stop and 48 <= data[at] <= 57:
        value = value * 10 + (np.int64(data[at]) - 48)
        at += 1
        if at - first > 17:
            return value, np.int64(-1)
    return value, np.int64(-1) if at - first < least else np.int64(at)


@kernel
def _days(year, month, day):  # type: ignore[no-untyped-def]
    """Days since 1970 in the proleptic Gregorian calendar, with a year 0."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@kernel(allocates=True)
def _date_time(data, at, stop):  # type: ignore[no-untyped-def]
    """Microseconds of an xsd:dateTime since 1970, whether it is one that 64 bits hold, and whether it has a zone; without
    one it is read as UTC, and digits below the microsecond are cut off."""
    none = np.int64(0), False, False
    negative = at < stop and data[at] == 45
    at += negative
    first = at
    year, at = _number(data, at, stop, 4)
    if at < 0 or (at - first > 4 and data[first] == 48) or year > 300_000:
        return none
    fields = np.empty(5, np.int64)  # month, day, hour, minute, second
    for i in range(5):
        if at >= stop or data[at] != (45 if i < 2 else 84 if i == 2 else 58):
            return none
        first = at + 1
        fields[i], at = _number(data, first, stop, 2)
        if at != first + 2:
            return none
    micros = np.int64(0)
    if at < stop and data[at] == 46:
        at += 1
        first = at
        scale = np.int64(100_000)
        while at < stop and 48 <= data[at] <= 57:
            micros += (np.int64(data[at]) - 48) * scale
            scale //= 10
            at += 1
        if at == first:
            return none
    zone = at < stop
    shift = np.int64(0)
    if zone and data[at] == 90:  # Z
        at += 1
    elif zone:
        if (data[at] != 43 and data[at] != 45) or stop - at != 6 or data[at + 3] != 58:
            return none
        hours, end = _number(data, at + 1, at + 3, 2)
        minutes, after = _number(data, at + 4, at + 6, 2)
        if end < 0 or after < 0 or minutes > 59 or hours * 60 + minutes > 840:
            return none
        shift = (hours * 60 + minutes) * (1 if data[at] == 43 else -1)
        at += 6
    month, day, hour, minute, second = fields[0], fields[1], fields[2], fields[3], fields[4]
    if negative:
        year = -year
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = (29 if leap else 28) if month == 2 else 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    midnight = hour == 24 and minute == 0 and second == 0 and micros == 0
    if (
        at != stop
        or month < 1
        or month > 12
        or day < 1
        or day > length
        or minute > 59
        or second > 59
        or (hour > 23 and not midnight)
    ):
        return none
    days = _days(year, month, day)
    if days < -106_751_990 or days > 106_751_989:
        return none
    seconds = days * 86400 + hour * 3600 + (minute - shift) * 60 + second
    return seconds * 1_000_000 + micros, True, zone


@kernel
def _date_times(data, bounds, codes, zoned, out, good):  # type: ignore[no-untyped-def]
    for code in codes:
        out[code], good[code], zone = _date_time(data, bounds[code, 0], bounds[code, 1])
        good[code] &= zone or not zoned


# ---------------------------------------------------------------- values


class TermValues:
    """What the terms of a dictionary mean, arrays by code; the dictionary's later terms are not in it.

    kind: int8, one of IRI, BLANK, SIMPLE, TAGGED, NUMERIC, BOOLEAN, TIME, OTHER. rank: int8, of numbers INTEGER, DECIMAL,
    FLOAT or DOUBLE, else -1. number, is_number: the nearest double, NaN for none. integer, is_integer: int64, of numbers
    that are whole and fit. text: what str() says: IRI or lexical form; null of blank nodes. language, datatype: dictionary
    arrays; null where there is none. time_us, is_time: of xsd:dateTime, UTC where there is no zone. truth: of booleans.
    order: the rank by SPARQL's ORDER BY: blank nodes, IRIs, numbers by value, booleans, times, strings by code points,
    others by text; no two are equal. of_order: the code of each rank.
    """

    def __init__(self, dictionary: TermDictionary) -> None:
        self.dictionary = dictionary
        count = len(dictionary)
        data, offsets = dictionary.bytes_of_terms()
        self.kind: I8 = np.zeros(count, np.int8)
        bounds = np.zeros((count, 4), np.int64)
        _split(data, offsets, self.kind, bounds)
        self.text: pa.LargeStringArray = _texts(data, bounds[:, 0].copy(), bounds[:, 1].copy(), self.kind != BLANK)
        self.language: pa.DictionaryArray = _texts(data, bounds[:, 2], bounds[:, 3], self.kind == TAGGED).dictionary_encode()
        self.datatype: pa.DictionaryArray = _datatypes(data, bounds, self.kind)
        self.rank: I8 = np.full(count, -1, np.int8)
        self.number: F64 = np.full(count, np.nan)
        self.is_number: Bool = np.zeros(count, np.bool_)
        self.integer: I64 = np.zeros(count, np.int64)
        self.is_integer: Bool = np.zeros(count, np.bool_)
        self.time_us: I64 = np.zeros(count, np.int64)
        self.is_time: Bool = np.zeros(count, np.bool_)
        self.truth: Bool = np.zeros(count, np.bool_)
        self._exact = self._read_values(data, bounds)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def order(self) -> I64:
        return self._orders[0]

    @property
    def of_order(self) -> I64:
        return self._orders[1]

    @cached_property
    def _orders(self) -> tuple[I64, I64]:
        return self._sorted(self._exact)

    def _read_values(self, data: U8, bounds: I64) -> F64:
        """Set the values of literals with a datatype. Returns by how much numbers exceed their doubles."""
        exact = np.zeros(len(self))
        types = self.datatype.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for index, name in enumerate(self.datatype.dictionary.to_pylist()):
            short = name.removeprefix(XSD) if name.startswith(XSD) else ""
            codes = np.flatnonzero((types == index) & (self.kind == _TYPED))
            if not len(codes):
                continue
            if short in ("dateTime", "dateTimeStamp"):
                _date_times(data, bounds, codes, short != "dateTime", self.time_us, self.is_time)
                self.kind[codes[self.is_time[codes]]] = TIME
            elif short == "boolean":
                self._read_booleans(codes)
            elif short in _RANGES:
                self._read_integers(codes, *_RANGES[short], exact)
            elif short == "decimal":
                self._read_reals(codes, DECIMAL, _DECIMAL_FORM.fullmatch)
                self._note_digits(codes, exact)
            elif short in ("float", "double"):
                self._read_reals(codes, FLOAT if short == "float" else DOUBLE, _DOUBLE_FORM.fullmatch)
        return exact

    def _lexical(self, codes: I64) -> list[str]:
        import pyarrow as pa

        texts: list[str] = self.text.take(pa.array(codes)).to_pylist()
        return texts

    def _read_booleans(self, codes: I64) -> None:
        for code, text in zip(codes.tolist(), self._lexical(codes), strict=True):
            if text in ("true", "false", "1", "0"):
                self.kind[code], self.truth[code] = BOOLEAN, text in ("true", "1")

    def _read_integers(self, codes: I64, least: int | None, most: int | None, exact: F64) -> None:
        for code, text in zip(codes.tolist(), self._lexical(codes), strict=True):
            if _INTEGER_FORM.fullmatch(text) is None:
                continue
            value = int(text) if len(text) <= _LONGEST else _huge(text)
            if (least is not None and value < least) or (most is not None and value > most):
                continue
            number = _double(value)
            self.kind[code], self.rank[code], self.is_number[code], self.number[code] = NUMERIC, INTEGER, True, number
            if -(1 << 63) <= value < 1 << 63:
                self.integer[code], self.is_integer[code] = value, True
            if abs(value) > 1 << 53 and np.isfinite(number):
                exact[code] = _double(value - int(number))

    def _read_reals(self, codes: I64, rank: int, matches: Callable[[str], object]) -> None:
        texts = self._lexical(codes)
        good = np.array([matches(text) is not None for text in texts], np.bool_)
        found = np.array([float(text) for text, right in zip(texts, good, strict=True) if right], np.float64)
        codes = codes[good]
        self.kind[codes], self.rank[codes], self.is_number[codes], self.number[codes] = NUMERIC, rank, True, found
        whole = (found == np.floor(found)) & (np.abs(found) < 2.0**53)
        self.is_integer[codes] = whole
        self.integer[codes] = np.where(whole, found, 0).astype(np.int64)

    def _note_digits(self, codes: I64, exact: F64) -> None:
        """Of decimals with more digits than a double has. A fraction that the double lost makes the number no integer."""
        codes = codes[self.is_number[codes]]
        for code, text in zip(codes.tolist(), self._lexical(codes), strict=True):
            digits = text.rstrip("0") if "." in text else text
            if len(digits.lstrip("+-0.")) > _EXACT_DIGITS and np.isfinite(self.number[code]):
                value = Fraction(text) if len(text) <= _LONGEST else Fraction(self.number[code])
                beyond = value - Fraction(self.number[code])
                exact[code] = float(beyond)
                whole = value.denominator == 1 and -(1 << 63) <= value.numerator < 1 << 63
                self.is_integer[code], self.integer[code] = whole, value.numerator if whole else 0

    def _sorted(self, exact: F64) -> tuple[I64, I64]:
        """order and of_order. exact: by how much numbers exceed their doubles."""
        import pyarrow as pa
        import pyarrow.compute as pc

        group = np.array([1, 0, 5, 5, 2, 3, 4, 6], np.int64)[self.kind]
        terms = self.dictionary.texts()[: len(self)]
        by_text = _ranks(terms)
        strings = np.isin(self.kind, (SIMPLE, TAGGED))
        value = np.zeros(len(self))
        value[self.is_number] = np.where(np.isnan(self.number), np.inf, self.number)[self.is_number]
        instant = np.where(self.is_time, self.time_us, self.truth.astype(np.int64))
        if strings.any():  # by lexical form, those without a tag first
            lexical = pc.if_else(pa.array(strings), self.text, "")
            instant = np.where(strings, _ranks(lexical, distinct=False), instant)
        nan = self.is_number & np.isnan(self.number)
        tagged = self.kind == TAGGED
        of_order = np.lexsort((by_text, tagged, instant, exact, nan, value, group)).astype(np.int64)
        order = np.empty(len(self), np.int64)
        order[of_order] = np.arange(len(self))
        return order, of_order


def _ranks(texts: pa.Array, distinct: bool = True) -> I64:
    """Ranks of texts by code points; with not distinct, equal texts have one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = texts.cast(pa.large_binary())
    ranks: I64 = pc.rank(texts, tiebreaker="first" if distinct else "dense").to_numpy().astype(np.int64)
    return ranks


def _texts(data: U8, starts: I64, stops: I64, valid: Bool) -> pa.LargeStringArray:
    """Texts without escapes; null where not valid."""
    import pyarrow as pa

    starts = np.ascontiguousarray(starts)
    stops = np.where(valid, stops, starts)
    out = np.empty(int((stops - starts).sum()), np.uint8)
    offsets = np.zeros(len(starts) + 1, np.int64)
    escaped = _copy(data, starts, stops, out, offsets)
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    texts = pa.Array.from_buffers(pa.large_string(), len(starts), [mask, pa.py_buffer(offsets), pa.py_buffer(out)])
    return _unescaped(texts) if escaped else texts


def _unescaped(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    has = pc.fill_null(pc.match_substring(texts, "\\"), False)
    plain = [unescape(text) for text in texts.filter(has).to_pylist()]
    return pc.replace_with_mask(texts, has, pa.array(plain, pa.large_string()))


def _datatypes(data: U8, bounds: I64, kinds: I8) -> pa.DictionaryArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    typed = _texts(data, bounds[:, 2], bounds[:, 3], kinds == _TYPED)
    typed = pc.if_else(pa.array(kinds == SIMPLE), STRING, typed)
    return pc.if_else(pa.array(kinds == TAGGED), LANG_STRING, typed).dictionary_encode()


def _double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _huge(text: str) -> int:
    """A number beyond all doubles, of the sign of a text of too many digits, or 0."""
    size = len(text.lstrip("+-").lstrip("0"))
    value = 0 if size == 0 else int(text.lstrip("+-").lstrip("0")) if size <= _LONGEST else 1 << 2000
    return -value if text.startswith("-") else value
