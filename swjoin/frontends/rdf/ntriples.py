"""Lines of N-Triples and N-Quads, with times or without, as codes: a parser of our own.

What: `LineParser`, lines of text to codes; `TermReader`, a column of terms to codes; `Malformed`, what cannot be read.
Why: a triple is three numbers, and the text of nearly every term has been seen before. So a line is cut into terms by their
delimiters, 64 bytes at once, and a term that the dictionary has is right: only new ones are checked character by character.
Stays out: files, Turtle (`frontends.rdf.triples`), the dictionary itself.

The grammar is that of RDF 1.1, checked as pyoxigraph does: IRIs by RFC 3987, but for addresses of IPv6, whose characters alone
are checked; of language tags the grammar of N-Triples is checked, not the registry's. A term has one spelling, pyoxigraph's:
escapes are resolved, language tags are in lower case, xsd:string is left out. Lexical forms are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from swjoin.core.arrow_views import borrowed
from swjoin.core.batch import I64, U8, Bool
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import copy_items, match_mask, prefetch, trailing_zeros
from swjoin.frontends.rdf.dictionary import (
    BLOCK_BYTES,
    LANG_STRING,
    NO_CODE,
    NO_ROOM,
    RDF,
    STRING,
    TermDictionary,
    add_term,
    find_term,
    find_terms,
    indexes_of,
    padded,
    term_hash,
    text_buffers,
)

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECT, PREDICATE, OBJECT = range(3)
NO_TIMES, TIMES, TIMES_OR_NOT = range(3)  # whether a line starts with a time
# Why a line is malformed; kernels give the negative index.
REASONS = (
    "",
    "no code",  # NO_CODE and NO_ROOM are no reasons
    "no room",
    "the time is no integer of 64 bits",
    "the subject is neither an IRI nor a blank node",
    "the predicate is no IRI",
    "the object is no IRI, no blank node and no literal",
    "no dot ends the triple",
    "text follows the dot",
    "an IRI is not closed by >",
    "a string is not closed by a quote",
    "an IRI has no scheme",
    "an IRI has a character that is not allowed",
    "an IRI has a percent sign without two hexadecimal digits",
    "a backslash starts no escape of a character",
    "bytes that are no UTF-8",
    "a language tag is malformed",
    "a datatype is no IRI",
    "a blank node has no label, or one with a character that is not allowed",
    "a literal of the type rdf:langString has no language",
    "the term is missing",
    "text follows the term",
)
(_TIME, _NO_SUBJECT, _NO_PREDICATE, _NO_OBJECT, _NO_DOT, _AFTER_DOT, _OPEN_IRI, _OPEN_STRING, _NO_SCHEME, _IRI_CHARACTER) = (
    range(-3, -13, -1)
)
(_PERCENT, _ESCAPE, _UTF8, _LANGUAGE, _DATATYPE, _BLANK, _LANG_STRING, _MISSING, _AFTER_TERM) = range(-13, -22, -1)
# What a kernel answers: all done; the dictionary, the scratch or the output has to grow.
_DONE, _TERMS_FULL, _SCRATCH_FULL, _OUTPUT_FULL = range(4)
_TAIL_BYTES = 1 << 16  # of a text, in which a line is expected to end
_BLOCK = 128  # lines that are cut before their terms are looked up, so that memory is asked for early
_TAB, _LF, _CR, _SPACE, _QUOTE, _HASH, _PERCENT_SIGN = 9, 10, 13, 32, 34, 35, 37
_PLUS, _MINUS, _DOT, _SLASH, _ZERO, _NINE, _COLON, _LESS, _GREATER, _QUESTION, _AT = 43, 45, 46, 47, 48, 57, 58, 60, 62, 63, 64
_BRACKET, _BACKSLASH, _CLOSING, _CARET, _UNDERSCORE = 91, 92, 93, 94, 95
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = "0123456789"


def _class_table(*classes: str) -> U8:
    """Bit i of a byte's entry: whether it is one of the characters of class i."""
    table = np.zeros(256, np.uint8)
    for bit, characters in enumerate(classes):
        for character in characters:
            table[ord(character)] |= 1 << bit
    return table


_UNRESERVED, _COLON_AT, _SLASHES, _SCHEME, _HEX, _LETTER, _NAME, _PLAIN = (1 << bit for bit in range(8))
_CLASS = _class_table(
    _LETTERS + _DIGITS + "-._~!$&'()*+,;=",
    ":@",
    "/?",
    _LETTERS + _DIGITS + "+-.",
    _DIGITS + "abcdefABCDEF",
    _LETTERS,
    _LETTERS + _DIGITS + "_",
    _LETTERS + _DIGITS + "-._~!$&'()*+,;=/?#",
)
_IS_PATH, _IS_QUERY, _IS_HOST = _UNRESERVED | _COLON_AT, _UNRESERVED | _COLON_AT | _SLASHES, _UNRESERVED
_STRING_BYTES = np.frombuffer(STRING.encode(), np.uint8).copy()
_LANG_BYTES = np.frombuffer(LANG_STRING.encode(), np.uint8).copy()
_DIRECTED_BYTES = np.frombuffer((RDF + "dirLangString").encode(), np.uint8).copy()


# ---------------------------------------------------------------- characters


@kernel
def _decode(data, at, stop):  # type: ignore[no-untyped-def]
    """Code point and length of the character at a byte above 127; -1, 1 for what is no UTF-8."""
    lead = np.int64(data[at])
    if lead < 0xC2 or lead > 0xF4:
        return np.int64(-1), np.int64(1)
    size = np.int64(2) if lead < 0xE0 else np.int64(3) if lead < 0xF0 else np.int64(4)
    if at + size > stop:
        return np.int64(-1), np.int64(1)
    point = lead & (0x7F >> size)
    for j in range(1, size):
        byte = np.int64(data[at + j])
        if byte & 0xC0 != 0x80:
            return np.int64(-1), np.int64(1)
        point = (point << 6) | (byte & 0x3F)
    least = 0x80 if size == 2 else 0x800 if size == 3 else 0x10000
    if point < least or point > 0x10FFFF or (0xD800 <= point <= 0xDFFF):
        return np.int64(-1), np.int64(1)
    return point, size


@kernel
def _put(out, n, point):  # type: ignore[no-untyped-def]
    """A character as UTF-8; returns where the next one goes."""
    if point < 0x80:
        out[n] = point
        return n + 1
    if point < 0x800:
        out[n] = 0xC0 | (point >> 6)
    elif point < 0x10000:
        out[n] = 0xE0 | (point >> 12)
        n += 1
        out[n] = 0x80 | ((point >> 6) & 0x3F)
    else:
        out[n] = 0xF0 | (point >> 18)
        out[n + 1] = 0x80 | ((point >> 12) & 0x3F)
        n += 2
        out[n] = 0x80 | ((point >> 6) & 0x3F)
    out[n + 1] = 0x80 | (point & 0x3F)
    return n + 2


@kernel
def _put_in_string(out, n, point):  # type: ignore[no-untyped-def]
    """A character of a literal, escaped if it must be."""
    if (0x20 <= point < 0x7F and point != _QUOTE and point != _BACKSLASH) or 0x7F < point < 0xFFFE or point > 0xFFFF:
        return _put(out, n, point)
    out[n] = _BACKSLASH
    short = np.int64(0)
    if point in (_QUOTE, _BACKSLASH):
        short = point
    elif point == _LF:
        short = np.int64(110)
    elif point == _CR:
        short = np.int64(114)
    elif point == _TAB:
        short = np.int64(116)
    elif point == 8:
        short = np.int64(98)
    elif point == 12:
        short = np.int64(102)
    if short > 0:
        out[n + 1] = short
        return n + 2
    out[n + 1] = 117  # u
    for j in range(4):
        digit = (point >> (12 - 4 * j)) & 15
        out[n + 2 + j] = digit + (48 if digit < 10 else 55)
    return n + 6


@kernel
def _escaped_point(data, at, stop):  # type: ignore[no-untyped-def]
    """Code point and length of a numeric escape whose backslash is at `at`; -1, 0 when it is none."""
    wanted = np.int64(0)
    if at + 1 < stop:
        wanted = np.int64(4) if data[at + 1] == 117 else np.int64(8) if data[at + 1] == 85 else np.int64(0)
    if wanted == 0 or at + 2 + wanted > stop:
        return np.int64(-1), np.int64(0)
    point = np.int64(0)
    for j in range(wanted):
        byte = np.int64(data[at + 2 + j])
        if not _CLASS[byte] & _HEX:
            return np.int64(-1), np.int64(0)
        point = point * 16 + (byte - 48 if byte <= _NINE else (byte | 32) - 87)
    if point > 0x10FFFF or (0xD800 <= point <= 0xDFFF):
        return np.int64(-1), np.int64(0)
    return point, wanted + 2


@kernel
def _simple_escape(byte):  # type: ignore[no-untyped-def]
    """The character of a backslash and this one; -1 when there is none."""
    if byte in (_QUOTE, _BACKSLASH) or byte == 39:
        return np.int64(byte)
    if byte == 110:
        return np.int64(_LF)
    if byte == 114:
        return np.int64(_CR)
    if byte == 116:
        return np.int64(_TAB)
    if byte == 98:
        return np.int64(8)
    return np.int64(12) if byte == 102 else np.int64(-1)


# ---------------------------------------------------------------- terms


@kernel
def _iri_character(data, at, stop, allowed, private):  # type: ignore[no-untyped-def]
    """Length of the character of an IRI at `at`, or a reason. allowed: classes of ASCII. private: whether private use is."""
    byte = np.int64(data[at])
    if byte < 0x80:
        if _CLASS[byte] & allowed:
            return np.int64(1)
        if byte != _PERCENT_SIGN:
            return np.int64(_IRI_CHARACTER)
        if at + 2 >= stop or not _CLASS[data[at + 1]] & _HEX or not _CLASS[data[at + 2]] & _HEX:
            return np.int64(_PERCENT)
        return np.int64(3)
    point, size = _decode(data, at, stop)
    if point < 0:
        return np.int64(_UTF8)
    if 0xA0 <= point <= 0xD7FF or 0xF900 <= point <= 0xFDCF or 0xFDF0 <= point <= 0xFFEF:
        return size
    if 0x10000 <= point < 0xF0000 and point & 0xFFFF <= 0xFFFD and not 0xE0000 <= point < 0xE1000:
        return size
    if private and (0xE000 <= point <= 0xF8FF or (point >= 0xF0000 and point & 0xFFFF <= 0xFFFD)):
        return size
    return np.int64(_IRI_CHARACTER)


@kernel
def _check_host(data, at, stop):  # type: ignore[no-untyped-def]
    """Where the authority that starts at `at` ends, or a reason."""
    host = at
    while at < stop and data[at] != _AT and data[at] != _BRACKET:
        byte = data[at]
        if byte in (_SLASH, _QUESTION, _HASH):
            break
        size = np.int64(1) if byte == _COLON else _iri_character(data, at, stop, _IS_HOST, False)
        if size < 0:
            return size
        at += size
    at = at + 1 if at < stop and data[at] == _AT else host
    if at < stop and data[at] == _BRACKET:
        at += 1
        first = at
        while at < stop and data[at] != _CLOSING:
            byte = data[at]
            future = data[first] | 32 == 118  # v: an address of a later version
            if not (_CLASS[byte] & _HEX or byte in (_COLON, _DOT) or (future and _CLASS[byte] & _UNRESERVED)):
                return np.int64(_IRI_CHARACTER)
            at += 1
        if at in (stop, first):
            return np.int64(_IRI_CHARACTER)
        at += 1
        if at < stop and data[at] != _COLON and data[at] != _SLASH and data[at] != _QUESTION and data[at] != _HASH:
            return np.int64(_IRI_CHARACTER)
    while at < stop and data[at] != _COLON and data[at] != _SLASH and data[at] != _QUESTION and data[at] != _HASH:
        size = _iri_character(data, at, stop, _IS_HOST, False)
        if size < 0:
            return size
        at += size
    if at < stop and data[at] == _COLON:
        at += 1
        while at < stop and data[at] != _SLASH and data[at] != _QUESTION and data[at] != _HASH:
            if not _ZERO <= data[at] <= _NINE:
                return np.int64(_IRI_CHARACTER)
            at += 1
    return np.int64(at)


@kernel
def _check_iri(data, at, stop):  # type: ignore[no-untyped-def]
    """0 for an absolute IRI as of RFC 3987, else a reason."""
    if at == stop or not _CLASS[data[at]] & _LETTER:
        return np.int64(_NO_SCHEME)
    while at < stop and _CLASS[data[at]] & _SCHEME:
        at += 1
    if at == stop or data[at] != _COLON:
        return np.int64(_NO_SCHEME)
    at += 1
    if at + 1 < stop and data[at] == _SLASH and data[at + 1] == _SLASH:
        at = _check_host(data, at + 2, stop)
        if at < 0:
            return at
    allowed, private, fragment = _IS_PATH, False, False
    while at < stop:
        byte = data[at]
        if byte == _QUESTION and allowed == _IS_PATH:
            allowed, private = _IS_QUERY, True
            at += 1
        elif byte == _HASH and not fragment:
            allowed, private, fragment = _IS_QUERY, False, True
            at += 1
        elif byte == _SLASH:
            at += 1
        else:
            size = _iri_character(data, at, stop, allowed, private)
            if size < 0:
                return size
            at += size
    return np.int64(0)


@kernel
def _normal_iri(data, start, stop, out, n):  # type: ignore[no-untyped-def]
    """Write an IRI with its brackets, data[start : stop], in the one spelling to out[n]; returns where it ends, or a reason."""
    out[n] = _LESS
    first = n + 1
    n = first
    at, stop = start + 1, stop - 1
    while at < stop:
        byte = data[at]
        if byte == _BACKSLASH:
            point, size = _escaped_point(data, at, stop)
            if point < 0:
                return np.int64(_ESCAPE)
            n = _put(out, n, point)
            at += size
        else:
            out[n] = byte
            n += 1
            at += 1
    reason = _check_iri(out, first, n)
    if reason < 0:
        return reason
    out[n] = _GREATER
    return np.int64(n + 1)


@kernel
def _is(data, start, stop, wanted):  # type: ignore[no-untyped-def]
    if stop - start != wanted.shape[0]:
        return False
    same = True
    for j in range(wanted.shape[0]):
        same &= data[start + j] == wanted[j]
    return same


@kernel
def _normal_language(data, at, stop, out, n):  # type: ignore[no-untyped-def]
    """As `_normal_iri`, a language tag with its @; at: behind the @."""
    out[n] = _AT
    n += 1
    first, start, plain = True, at, at
    while at <= stop:
        if at == stop or data[at] == _MINUS:
            if at == start:
                return np.int64(_LANGUAGE)
            first, start = False, at + 1
            if at == stop:
                break
        elif (first and not _CLASS[data[at]] & _LETTER) or not _CLASS[data[at]] & _NAME:
            return np.int64(_LANGUAGE)
        at += 1
    for j in range(plain, stop):
        byte = data[j]
        out[n] = byte | 32 if 65 <= byte <= 90 else byte
        n += 1
    return np.int64(n)


@kernel
def _normal_literal(data, start, stop, out, n):  # type: ignore[no-untyped-def]
    """As `_normal_iri`, a literal from its quote on."""
    out[n] = _QUOTE
    n += 1
    at = start + 1
    while at < stop and data[at] != _QUOTE:
        byte = np.int64(data[at])
        if byte == _BACKSLASH:
            point = _simple_escape(data[at + 1]) if at + 1 < stop else np.int64(-1)
            size = np.int64(2)
            if point < 0:
                point, size = _escaped_point(data, at, stop)
            if point < 0:
                return np.int64(_ESCAPE)
        elif byte in (_CR, _LF):
            return np.int64(_OPEN_STRING)
        elif byte < 0x80:
            point, size = byte, np.int64(1)
        else:
            point, size = _decode(data, at, stop)
            if point < 0:
                return np.int64(_UTF8)
        n = _put_in_string(out, n, point)
        at += size
    out[n] = _QUOTE
    n += 1
    at += 1
    while at < stop and (data[at] == _SPACE or data[at] == _TAB):
        at += 1
    if at >= stop:
        return np.int64(n)
    if data[at] == _AT:
        return _normal_language(data, at + 1, stop, out, n)
    at += 2
    while data[at] == _SPACE or data[at] == _TAB:
        at += 1
    end = _normal_iri(data, at, stop, out, n + 2)
    if end < 0:
        return end
    if _is(out, n + 3, end - 1, _LANG_BYTES) or _is(out, n + 3, end - 1, _DIRECTED_BYTES):
        return np.int64(_LANG_STRING)
    if _is(out, n + 3, end - 1, _STRING_BYTES):
        return np.int64(n)
    out[n] = _CARET
    out[n + 1] = _CARET
    return end


@kernel
def _is_name(point, first):  # type: ignore[no-untyped-def]
    """Whether a character may stand in a blank node's label, or start it."""
    if point < 0x80:
        return bool(_CLASS[point] & _NAME) or (not first and (point in (_MINUS, _DOT)))
    if not first and (point == 0xB7 or 0x300 <= point <= 0x36F or point == 0x203F or point == 0x2040):
        return True
    if point < 0x2000:
        return point >= 0xC0 and point != 0xD7 and point != 0xF7 and not 0x300 <= point <= 0x36F and point != 0x37E
    if point < 0x3001:
        return 0x200C <= point <= 0x200D or 0x2070 <= point <= 0x218F or 0x2C00 <= point <= 0x2FEF
    return point <= 0xD7FF or 0xF900 <= point <= 0xFDCF or 0xFDF0 <= point <= 0xFFFD or 0x10000 <= point <= 0xEFFFF


@kernel
def _normal_blank(data, start, stop, scope, out, n):  # type: ignore[no-untyped-def]
    """As `_normal_iri`, a blank node, its label behind that of its scope."""
    for j in range(scope.shape[0]):
        out[n + j] = scope[j]
    n += scope.shape[0]
    at = start + 2
    while at < stop:
        point, size = np.int64(data[at]), np.int64(1)
        if point >= 0x80:
            point, size = _decode(data, at, stop)
            if point < 0:
                return np.int64(_UTF8)
        if not _is_name(point, at == start + 2):
            return np.int64(_BLANK)
        for j in range(size):
            out[n + j] = data[at + j]
        n += size
        at += size
    return np.int64(_BLANK) if stop <= start + 2 or data[stop - 1] == _DOT else np.int64(n)


@kernel
def _normal_term(data, start, stop, scope, out):  # type: ignore[no-untyped-def]
    """Write a term that `_term_end` has delimited to out in the one spelling; returns its length, or a reason."""
    if data[start] == _LESS:
        return _normal_iri(data, start, stop, out, 0)
    if data[start] == _QUOTE:
        return _normal_literal(data, start, stop, out, 0)
    return _normal_blank(data, start, stop, scope, out, 0)


@kernel(inline="always")
def _is_plain_iri(data, at, stop):  # type: ignore[no-untyped-def]
    """Whether an IRI, without its brackets, is right at first sight: ASCII, without escapes, and no colon after the scheme."""
    if at == stop or not _CLASS[data[at]] & _LETTER:
        return False
    while at < stop and _CLASS[data[at]] & _SCHEME:
        at += 1
    if at == stop or data[at] != _COLON:
        return False
    marks, all_plain = 0, np.uint8(_PLAIN)
    for i in range(at + 1, stop):
        all_plain &= _CLASS[data[i]]
        marks += data[i] == _HASH
    return all_plain != 0 and marks <= 1


@kernel(inline="always")
def _is_plain(data, start, stop):  # type: ignore[no-untyped-def]
    """Whether a term that `_term_end` has delimited is right at first sight and has the one spelling; most terms are."""
    if data[start] == _LESS:
        return _is_plain_iri(data, start + 1, stop - 1)
    if data[start] != _QUOTE:
        return False
    at = start + 1
    while data[at] != _QUOTE:
        if data[at] < _SPACE or data[at] >= 0x7F or data[at] == _BACKSLASH:
            return False
        at += 1
    at += 1
    if at == stop:
        return True
    if data[at] == _AT:
        plain = at + 1 < stop
        for i in range(at + 1, stop):
            plain &= 97 <= data[i] <= 122
        return plain
    size = stop - at - 4  # of the IRI between ^^< and >
    suspect = size == _STRING_BYTES.shape[0] or size == _LANG_BYTES.shape[0] or size == _DIRECTED_BYTES.shape[0]
    if suspect or data[at] != _CARET or data[at + 2] != _LESS:
        return False
    return _is_plain_iri(data, at + 3, stop - 1)


@kernel(inline="always")
def _is_plain_value(data, start, stop):  # type: ignore[no-untyped-def]
    """As `_is_plain`, of a value of a column, which may end anywhere, and begins with `<` or a quote."""
    if data[start] == _LESS:
        return stop - start > 2 and data[stop - 1] == _GREATER and _is_plain_iri(data, start + 1, stop - 1)
    at = start + 1
    while at < stop and data[at] != _QUOTE:
        at += 1
    if at >= stop:
        return False
    typed = stop - at > 5 and data[at + 1] == _CARET and data[at + 2] == _CARET and data[stop - 1] == _GREATER
    return (at + 1 == stop or data[at + 1] == _AT or typed) and _is_plain(data, start, stop)


# ---------------------------------------------------------------- cutting lines


@kernel(inline="always")
def _next(data, at, limit, byte):  # type: ignore[no-untyped-def]
    """The first place of a byte from `at` on, or limit."""
    while at < limit:
        found = match_mask(data, at, np.uint8(byte))
        if found != np.uint64(0):
            return min(at + trailing_zeros(found), limit)
        at += 64
    return limit


@kernel(inline="always")
def _spaces(data, at):  # type: ignore[no-untyped-def]
    """Behind spaces and tabs; another byte follows them somewhere."""
    while data[at] == _SPACE or data[at] == _TAB:
        at += 1
    return at


@kernel(inline="always")
def _literal_end(data, at, limit):  # type: ignore[no-untyped-def]
    """Behind the literal whose quote is at `at`, or a reason."""
    at += 1
    while True:
        quote = _next(data, at, limit, _QUOTE)
        escape = _next(data, at, quote, _BACKSLASH)
        if escape == quote:
            break
        at = escape + 2
    if quote >= limit:
        return np.int64(_OPEN_STRING)
    stop = np.int64(quote + 1)
    at = _spaces(data, stop)
    if data[at] == _AT:
        at += 1
        while (_CLASS[data[at]] & _NAME and data[at] != _UNDERSCORE) or data[at] == _MINUS:
            at += 1
        return np.int64(at)
    if data[at] != _CARET:
        return stop
    if data[at + 1] != _CARET:
        return np.int64(_DATATYPE)
    at = _spaces(data, at + 2)
    if data[at] != _LESS:
        return np.int64(_DATATYPE)
    at = _next(data, at, limit, _GREATER)
    return np.int64(at + 1) if at < limit else np.int64(_OPEN_IRI)


@kernel
def _blank_end(data, at):  # type: ignore[no-untyped-def]
    """Behind the blank node at `at`, or a reason."""
    if data[at + 1] != _COLON:
        return np.int64(_BLANK)
    at += 2
    start = at
    while _CLASS[data[at]] & _NAME or data[at] == _MINUS or data[at] == _DOT or data[at] >= 0x80:
        at += 1
    while at > start and data[at - 1] == _DOT:
        at -= 1
    return np.int64(at) if at > start else np.int64(_BLANK)


@kernel(inline="always")
def _term_end(data, at, limit, role):  # type: ignore[no-untyped-def]
    """Behind the term at `at`, or a reason. Between its delimiters nothing has been checked."""
    byte = data[at]
    if byte == _LESS:
        end = _next(data, at, limit, _GREATER)
        end = end + 1 if end < limit else _OPEN_IRI
    elif byte == _UNDERSCORE and role != PREDICATE:
        end = _blank_end(data, at)
    elif byte == _QUOTE and role == OBJECT:
        end = _literal_end(data, at, limit)
    else:
        end = _NO_SUBJECT - role
    return np.int64(end)


@kernel
def _time(data, at, limit):  # type: ignore[no-untyped-def]
    """The integer at `at` and where it ends; ends at _TIME when there is none of 64 bits."""
    negative = data[at] == _MINUS
    if negative or data[at] == _PLUS:
        at += 1
    value, digits, first = np.int64(0), np.int64(0), at
    while at < limit and _ZERO <= data[at] <= _NINE:
        digit = np.int64(data[at]) - _ZERO
        if value < -922337203685477580 or (value == -922337203685477580 and digit > (8 if negative else 7)):
            return value, np.int64(_TIME)
        value = value * 10 - digit  # negative numbers reach one further
        digits += 1
        at += 1
    if at == first:
        return value, np.int64(_TIME)
    return value if negative else -value, np.int64(at)


@kernel
def _line_end(data, at, limit):  # type: ignore[no-untyped-def]
    """Of the line that holds `at`, the first byte that ends it; limit when nothing does."""
    while at < limit and data[at] != _LF and data[at] != _CR:
        at += 1
    return np.int64(at)


@kernel(inline="always")
def _cut_line(data, at, limit, times, graphs, row, lines, starts, ends, hashes, mask, table):  # type: ignore[no-untyped-def]
    """Cut the line at `at` into terms: items 3 row to 3 row + 2 of starts, ends and hashes; a blank node has no hash. Of
    lines[row] are set: the time, the graph's name, and _REST, behind all of these. Returns 1, 0 for a line without a triple, or
    a reason."""
    lines[row, _REST] = at
    at = _spaces(data, at)
    if at >= limit or data[at] == _LF or data[at] == _CR or data[at] == _HASH:
        return np.int64(0)
    if times == TIMES or (times == TIMES_OR_NOT and data[at] != _LESS and data[at] != _UNDERSCORE):
        lines[row, _TS], at = _time(data, at, limit)
        if at < 0:
            return np.int64(at)
        if data[at] != _SPACE and data[at] != _TAB and data[at] != _LESS and data[at] != _UNDERSCORE:
            return np.int64(_TIME)
        at = _spaces(data, at)
    for role in range(3):
        end = _term_end(data, at, limit, role)
        if end < 0:
            return np.int64(end)
        item = 3 * row + role
        starts[item], ends[item], hashes[item] = at, end, 0
        if data[at] != _UNDERSCORE:
            hashed = term_hash(data, at, end - at)
            hashes[item] = hashed
            prefetch(table, np.int64((hashed >> np.uint64(32)) & mask))  # type: ignore[arg-type]
        at = _spaces(data, end)
    lines[row, _GRAPH] = -1
    if graphs and (data[at] == _LESS or data[at] == _UNDERSCORE):
        end = _term_end(data, at, limit, SUBJECT)
        if end < 0:
            return np.int64(end)
        lines[row, _GRAPH], lines[row, _GRAPH_END] = at, end
        at = _spaces(data, end)
    if at >= limit or data[at] != _DOT:
        return np.int64(_NO_DOT)
    at = _spaces(data, at + 1)
    if at < limit and data[at] != _LF and data[at] != _CR and data[at] != _HASH:
        return np.int64(_AFTER_DOT)
    lines[row, _REST] = at
    return np.int64(1)


@kernel
def _cut_lines(data, at, size, times, graphs, lines, starts, ends, hashes, table):  # type: ignore[no-untyped-def]
    """Cut lines from `at` on, as many as `lines` has rows; returns how many."""
    limit, cut = at - 1, 0
    mask = np.uint64(table.shape[0] - 1)
    while at < size and cut < lines.shape[0]:
        if limit < at:
            limit = _next(data, at, size, _LF)
        status = _cut_line(data, at, limit, times, graphs, cut, lines, starts, ends, hashes, mask, table)
        if status != 1:
            for item in range(3 * cut, 3 * cut + 3):
                starts[item], ends[item], hashes[item] = at, at, 0
        end = lines[cut, _REST]
        if end < limit and data[end] != _CR:
            end = _line_end(data, end, limit)
        lines[cut, _STATUS] = status
        lines[cut, _START] = at
        lines[cut, _END] = end
        at = end + 1
        if data[end] == _CR and data[at] == _LF:
            at += 1
        lines[cut, _AFTER] = min(at, size)
        cut += 1
    return cut


_TS, _REST, _START, _END, _AFTER, _STATUS, _GRAPH, _GRAPH_END, _WIDTH = range(9)


@kernel
def _odd_code(data, start, end, scope, scratch, table, arena, offsets, counts):  # type: ignore[no-untyped-def]
    """Code of a term that is written in another way than the dictionary's, or may be no term; a reason; or NO_ROOM."""
    size = _normal_term(data, start, end, scope, scratch)
    if size < 0:
        return np.int64(size)
    hashed = term_hash(scratch, 0, size)
    code = find_term(scratch, 0, size, hashed, table, arena, offsets)
    if code < 0:
        code = add_term(scratch, 0, size, hashed, table, arena, offsets, counts)
    return np.int64(code)


@kernel
def _parse(  # type: ignore[no-untyped-def]
    data,
    size,
    times,
    graphs,
    scope,
    state,
    out,
    bad,
    lines,
    starts,
    ends,
    hashes,
    codes,
    scratch,
    table,
    arena,
    offsets,
    counts,
):
    """Codes of the lines from state[0] on; the answer is _DONE, or what has to grow before the same call goes on.

    state: where the next line starts, lines before it, rows and malformed lines so far, bytes that are missing. out: (4,
    capacity), times and codes. bad: (capacity, 4): line, start, end and reason. lines: (n, _WIDTH), of lines that are cut
    before their terms are looked up; starts, ends, hashes, codes: of their terms.
    """
    while state[0] < size:
        cut = _cut_lines(data, state[0], size, times, graphs, lines, starts, ends, hashes, table)
        find_terms(data, starts, ends, hashes, codes, 3 * cut, table, arena, offsets)
        for row in range(cut):
            reason = lines[row, _STATUS]
            at_row = state[2]
            if at_row == out.shape[1] or state[3] == bad.shape[0]:
                return _OUTPUT_FULL
            if reason == 1:
                for role in range(3):
                    item = 3 * row + role
                    start, end, code = starts[item], ends[item], codes[item]
                    if code < 0 and hashes[item] != np.uint64(0):
                        # It may have come a few lines before. No calls: each one counts references to all its arrays.
                        size_of_term, hashed = end - start, hashes[item]
                        code = find_term(data, start, size_of_term, hashed, table, arena, offsets)
                        if code < 0 and _is_plain(data, start, end):
                            code = add_term(data, start, size_of_term, hashed, table, arena, offsets, counts)
                    if code == NO_CODE:
                        if 6 * (end - start) + scope.shape[0] + BLOCK_BYTES + 16 > scratch.shape[0]:
                            state[4] = 6 * (end - start) + scope.shape[0] + BLOCK_BYTES + 16
                            return _SCRATCH_FULL
                        code = _odd_code(data, start, end, scope, scratch, table, arena, offsets, counts)
                    if code == NO_ROOM:
                        state[4] = max(end - start, scratch.shape[0])
                        return _TERMS_FULL
                    if code < 0:
                        reason = code
                        break
                    out[role + 1, at_row] = code
                start, end = lines[row, _GRAPH], lines[row, _GRAPH_END]
                if start >= 0 and reason == 1:  # its name is checked and ignored
                    if 6 * (end - start) + scope.shape[0] + BLOCK_BYTES + 16 > scratch.shape[0]:
                        state[4] = 6 * (end - start) + scope.shape[0] + BLOCK_BYTES + 16
                        return _SCRATCH_FULL
                    reason = min(_normal_term(data, start, end, scope, scratch), 1)
            if reason == 1:
                out[0, at_row] = lines[row, _TS]
                state[2] += 1
            elif reason < 0:
                bad[state[3], 0] = state[1]
                bad[state[3], 1] = lines[row, _START]
                bad[state[3], 2] = lines[row, _END]
                bad[state[3], 3] = reason
                state[3] += 1
            state[1] += 1
            state[0] = lines[row, _AFTER]
    return _DONE


@kernel
def _encode_terms(data, text_offsets, valid, role, scope, state, out, scratch, table, arena, offsets, counts):  # type: ignore[no-untyped-def]
    """As `_parse`, codes or reasons of a column of terms: out[i] from state[0] on. role: where in triples they stand."""
    for i in range(state[0], text_offsets.shape[0] - 1):
        state[0] = i
        start, stop = text_offsets[i], text_offsets[i + 1]
        if (valid.shape[0] > 0 and not valid[i]) or start == stop:
            out[i] = _MISSING
            continue
        code = np.int64(NO_CODE)
        size, byte = stop - start, data[start]
        if byte == _LESS or (byte == _QUOTE and role == OBJECT):
            hashed = term_hash(data, start, size)
            code = find_term(data, start, size, hashed, table, arena, offsets)
            if code < 0 and _is_plain_value(data, start, stop):
                code = add_term(data, start, size, hashed, table, arena, offsets, counts)
                if code == NO_ROOM:
                    state[4] = size
                    return _TERMS_FULL
        if code < 0:
            at = 6 * size + scope.shape[0] + BLOCK_BYTES + 16  # where a copy lies that ends with zeros
            if at + size + BLOCK_BYTES > scratch.shape[0]:
                state[4] = at + size + BLOCK_BYTES
                return _SCRATCH_FULL
            copy_items(scratch, at, data, start, size)
            scratch[at + size : at + size + BLOCK_BYTES] = 0
            end = _term_end(scratch, at, at + size, role)
            if end >= 0 and end != at + size:
                end = np.int64(_AFTER_TERM)
            code = end
            if end > 0:
                code = _odd_code(scratch, at, end, scope, scratch, table, arena, offsets, counts)
            if code == NO_ROOM:
                state[4] = scratch.shape[0]
                return _TERMS_FULL
        out[i] = code
    return _DONE


@kernel
def _read_times(data, text_offsets, valid, out, good):  # type: ignore[no-untyped-def]
    """Integers of a column of texts, and which are integers of 64 bits."""
    for i in range(out.shape[0]):
        start, stop = text_offsets[i], text_offsets[i + 1]
        out[i], good[i] = 0, False
        if not (valid.shape[0] > 0 and not valid[i]) and start < stop:
            value, end = _time(data, start, stop)
            if end == stop:
                out[i], good[i] = value, True


# ---------------------------------------------------------------- readers


@dataclass(frozen=True)
class Malformed:
    """A line that is no triple. line: its number, from 1. text: the line, without its end."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class Parsed:
    """The triples of some lines. ts: int64 (n,), None where lines have no time; s, p, o: codes, int64 (n,). line_count: lines,
    with those that hold no triple."""

    ts: I64 | None
    s: I64
    p: I64
    o: I64
    malformed: list[Malformed]
    line_count: int


def scope_prefix(scope: int) -> str:
    """What stands before the label of a blank node of this scope: labels of different scopes differ."""
    return f"_:b{scope}x"


class _Reader:
    """What both readers have: the dictionary, the label of the scope, and memory of kernels."""

    def __init__(self, dictionary: TermDictionary, scope: int) -> None:
        self.dictionary = dictionary
        self._scope = np.frombuffer(scope_prefix(scope).encode(), np.uint8).copy()
        self._scratch = np.empty(1 << 12, np.uint8)

    def _complete(self, run: Callable[[], int], state: I64) -> None:
        """Run a kernel until it is done, with more memory each time. RunFailed above the dictionary's limit."""
        while (answer := run()) != _DONE:
            if answer == _TERMS_FULL:
                self.dictionary.grow(int(state[4]))
            elif answer == _SCRATCH_FULL:
                self._scratch = np.empty(2 * int(state[4]), np.uint8)


class LineParser(_Reader):
    """Lines `s p o .` as codes. times: TIMES if each starts with an integer, microseconds; of TIMES_OR_NOT, those that do are
    checked and ignored. graphs: N-Quads, a graph may follow, which is ignored. scope: blank nodes of the same label are the
    same within it."""

    def __init__(self, dictionary: TermDictionary, *, times: int = NO_TIMES, graphs: bool = False, scope: int = 0) -> None:
        super().__init__(dictionary, scope)
        self.times, self.graphs = times, graphs
        count = 3 * _BLOCK
        self._lines = np.zeros((_BLOCK, _WIDTH), np.int64)
        self._items = (
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.uint64),
            np.zeros(count, np.int64),
        )
        self._out, self._bad = np.empty((4, 1 << 12), np.int64), np.empty((1 << 10, 4), np.int64)

    def parse(self, data: bytes | memoryview, first_line: int = 1) -> Parsed:
        """The triples of whole lines; the last needs no end. first_line: the number of the first."""
        text, state, malformed = borrowed(data, np.uint8), np.zeros(5, np.int64), list[Malformed]()
        # Kernels may touch bytes behind the lines that they read: the last lines are copied to where they may.
        size = bytes(memoryview(data)[: max(len(text) - BLOCK_BYTES, 0)][-_TAIL_BYTES:]).rfind(b"\n") + 1
        size = size and max(len(text) - BLOCK_BYTES - _TAIL_BYTES, 0) + size
        for part, end in ((text, size), (padded(text[size:]), len(text) - size)):
            state[0] = state[3] = 0
            self._complete(partial(self._run, part, end, state), state)
            malformed += [
                Malformed(first_line + line, REASONS[-reason], part[start:stop].tobytes().decode(errors="replace"))
                for line, start, stop, reason in self._bad[: int(state[3])].tolist()
            ]
        out = self._out[:, : int(state[2])].copy()
        return Parsed(out[0] if self.times == TIMES else None, out[1], out[2], out[3], malformed, int(state[1]))

    def _run(self, text: U8, size: int, state: I64) -> int:
        arrays = (state, self._out, self._bad, self._lines, *self._items, self._scratch, *self.dictionary.arrays)
        answer = int(_parse(text, size, self.times, self.graphs, self._scope, *arrays))
        if answer == _OUTPUT_FULL:
            longer = np.empty((4, 2 * self._out.shape[1]), np.int64)
            longer[:, : int(state[2])] = self._out[:, : int(state[2])]
            self._out, self._bad = longer, np.concatenate([self._bad, np.empty_like(self._bad)])
        return answer


class TermReader(_Reader):
    """Columns of terms as codes; each term is checked as in a line, without space around it."""

    def __init__(self, dictionary: TermDictionary, *, scope: int = 0) -> None:
        super().__init__(dictionary, scope)
        self._last: dict[int, tuple[pa.Array, I64]] = {}

    def read(self, column: pa.Array, role: int) -> I64:
        """Codes, and for what is no term a reason, the negative index of REASONS. role: SUBJECT, PREDICATE or OBJECT. TypeError
        for a column that is no text."""
        import pyarrow as pa

        if pa.types.is_dictionary(column.type):
            known = self._last.get(role)
            if known is None or not _same_memory(known[0], column.dictionary):
                known = self._last[role] = column.dictionary, np.append(self.read(column.dictionary, role), _MISSING)
            return known[1][indexes_of(column)]
        data, offsets, valid = text_buffers(column)
        first, state, out = int(offsets[0]), np.zeros(5, np.int64), np.empty(len(column), np.int64)
        text, offsets = padded(data[first : int(offsets[-1])]), offsets - first

        def run() -> int:
            arrays = (state, out, self._scratch, *self.dictionary.arrays)
            return int(_encode_terms(text, offsets, valid, role, self._scope, *arrays))

        self._complete(run, state)
        return out


def _same_memory(one: pa.Array, other: pa.Array) -> bool:
    addresses = [[None if b is None else b.address for b in array.buffers()] for array in (one, other)]
    return len(one) == len(other) and one.offset == other.offset and addresses[0] == addresses[1]


def times_of_texts(column: pa.Array) -> tuple[I64, Bool]:
    """Integers of a column of text, and which are integers of 64 bits."""
    data, offsets, valid = text_buffers(column)
    out, good = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    _read_times(padded(data), offsets, valid, out, good)
    return out, good
