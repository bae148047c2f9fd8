"""RDF terms as integers: a code for every distinct term.

What: `TermDictionary`; `add_term` and `find_term`, its kernels, for the parser of lines; `split_term`, a term's parts;
`number_texts`, `string_texts`, `boolean_texts`, terms for computed values.
Why: the same term occurs in many triples, and a row of integers is compared, hashed and sent faster than text. The parser gives
codes without an object per term.
Stays out: what terms mean (`frontends.rdf.term_values`), which text is a term (`frontends.rdf.ntriples`).

A term is its text in N-Triples syntax. Nothing is canonicalised: `"1"` and `"01"` of the type integer are two terms. The text
itself has one spelling: escapes only for quotes, backslashes and control characters, language tags in lower case, no datatype
xsd:string; the parser makes such texts.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types, uint64
from numba.extending import intrinsic
from numpy.typing import NDArray

from swjoin.core.arrow_views import booleans_of, borrowed, decoded, integers_of
from swjoin.core.batch import I64, U8, Bool, check_offsets
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.hashing import GOLDEN, mix64_scalar
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import copy_items, prefetch

if TYPE_CHECKING:
    import pyarrow as pa

F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
XSD = "http://www.w3.org/2001/XMLSchema#"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
STRING, LANG_STRING = XSD + "string", RDF + "langString"
NO_CODE = -1  # of nulls, and of texts that have none
NO_ROOM = -2  # a kernel's answer: the dictionary has to grow
_MOST_CODES = (1 << 31) - 2  # the table has twice as many slots, and addresses them by 32 bits
_BLOCK = 128  # terms that are looked up at once
_LARGE = 1 << 20  # slots of a table
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ONE = np.uint64(1)
BLOCK_BYTES = 64  # that are hashed and compared at once; terms are followed by as many that may be read
_FACTORS = [(int(GOLDEN) * (2 * i + 1) * (2 * i + 3) + 2 * i * 0xD1B54A32D192ED03) % (1 << 64) | 1 for i in range(8)]


# ---------------------------------------------------------------- kernels


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]

    def _block_sum(data: Any, at: int, count: int) -> Any:
        """A number of up to 64 bytes, uint64."""
        words = np.zeros(BLOCK_BYTES, np.uint8)
        words[:count] = data[at : at + count]
        return np.add.reduce(_folded(words.view(np.uint64)) * np.array(_FACTORS, np.uint64))

    def _block_differs(one: Any, at: int, other: Any, to: int, count: int) -> bool:
        """Whether up to 64 bytes differ."""
        return bool((one[at : at + count] != other[to : to + count]).any())

else:

    def _load_block(context: Any, builder: Any, kind: Any, array: Any, at: Any, count: Any) -> Any:
        """The words of 64 bytes; those from `count` on are zero."""
        byte, vector = ir.IntType(8), ir.VectorType(ir.IntType(8), BLOCK_BYTES)
        index = ir.VectorType(ir.IntType(32), BLOCK_BYTES)
        start = builder.gep(context.make_array(kind)(context, builder, array).data, [at])
        loaded = builder.load(builder.bitcast(start, vector.as_pointer()), align=1)
        nothing = ir.Constant(vector, ir.Undefined)
        lane = builder.insert_element(nothing, builder.trunc(count, byte), ir.Constant(index.element, 0))
        counts = builder.shuffle_vector(lane, nothing, ir.Constant(index, [0] * BLOCK_BYTES))
        inside = builder.icmp_unsigned("<", ir.Constant(vector, list(range(BLOCK_BYTES))), counts)
        kept = builder.select(inside, loaded, ir.Constant(vector, [0] * BLOCK_BYTES))
        return builder.bitcast(kept, ir.VectorType(ir.IntType(64), BLOCK_BYTES // 8))

    def _reduced(builder: Any, how: str, words: Any) -> Any:
        kind = ir.FunctionType(words.type.element, [words.type])
        name = f"llvm.vector.reduce.{how}.v{words.type.count}i64"
        return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), [words])

    @intrinsic  # type: ignore[misc]
    def _block_sum(typing_context: Any, data: Any, at: Any, count: Any) -> Any:
        """A number of up to 64 bytes, uint64: the sum of words, each multiplied by a number of its place. All 64 are read."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            words = _load_block(context, builder, signature.args[0], *args)
            folded = builder.xor(words, builder.lshr(words, ir.Constant(words.type, [32] * words.type.count)))
            return _reduced(builder, "add", builder.mul(folded, ir.Constant(words.type, _FACTORS)))

        return types.uint64(data, types.int64, types.int64), build

    @intrinsic  # type: ignore[misc]
    def _block_differs(typing_context: Any, one: Any, at: Any, other: Any, to: Any, count: Any) -> Any:
        """Whether up to 64 bytes differ. All 64 are read."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            mine = _load_block(context, builder, signature.args[0], args[0], args[1], args[4])
            theirs = _load_block(context, builder, signature.args[2], args[2], args[3], args[4])
            found = _reduced(builder, "or", builder.xor(mine, theirs))
            return builder.icmp_unsigned("!=", found, ir.Constant(found.type, 0))

        return types.boolean(one, types.int64, other, types.int64, types.int64), build


def _folded(words: Any) -> Any:
    return words ^ (words >> _HALF)


@kernel(inline="always")
def term_hash(data, start, size):  # type: ignore[no-untyped-def]
    """uint64 hash of `size` bytes, 64 at once: a loop over words would cost a wrong guess of its end. data: at least
    BLOCK_BYTES longer than the term."""
    h = uint64(size) + _block_sum(data, start, min(size, BLOCK_BYTES))
    done = np.int64(BLOCK_BYTES)
    while done < size:
        h = mix64_scalar(h) + _block_sum(data, start + done, min(size - done, BLOCK_BYTES))
        done += BLOCK_BYTES
    return mix64_scalar(h)


@kernel(inline="always")
def _same_term(one, start, other, begin, size):  # type: ignore[no-untyped-def]
    done, same = np.int64(0), True
    while done < size and same:
        same = not _block_differs(one, start + done, other, begin + done, min(size - done, BLOCK_BYTES))
        done += BLOCK_BYTES
    return same


@kernel(inline="always")
def _candidate(hashed, table):  # type: ignore[no-untyped-def]
    """The first code with the hash's upper half, or NO_CODE."""
    mask = uint64(table.shape[0] - 1)
    tag = hashed >> _HALF
    slot = tag & mask
    while table[slot] != uint64(0) and table[slot] >> _HALF != tag:
        slot = (slot + _ONE) & mask
    return np.int64(table[slot] & _LOW) - np.int64(1)


@kernel(inline="always")
def find_term(data, start, size, hashed, table, arena, offsets):  # type: ignore[no-untyped-def]
    """Code of a term, or NO_CODE. hashed: its `term_hash`."""
    mask = uint64(table.shape[0] - 1)
    tag = hashed >> _HALF
    slot = tag & mask
    while table[slot] != uint64(0):
        if table[slot] >> _HALF == tag:
            code = np.int64(table[slot] & _LOW) - np.int64(1)
            begin = offsets[code]
            if offsets[code + 1] - begin == size and _same_term(data, start, arena, begin, size):
                return code
        slot = (slot + _ONE) & mask
    return np.int64(NO_CODE)


@kernel
def _find_one(data, size, table, arena, offsets):  # type: ignore[no-untyped-def]
    return find_term(data, 0, size, term_hash(data, 0, size), table, arena, offsets)


@kernel
def find_terms(data, starts, ends, hashes, codes, count, table, arena, offsets):  # type: ignore[no-untyped-def]
    """Codes of the first `count` terms; NO_CODE for those that have none, or no hash. In three passes, so that memory is asked
    for early."""
    for i in range(count):
        codes[i] = _candidate(hashes[i], table) if hashes[i] != uint64(0) else np.int64(NO_CODE)
        prefetch(offsets, max(codes[i], 0))
    for i in range(count):
        if codes[i] >= 0:
            prefetch(arena, offsets[codes[i]])
            prefetch(arena, offsets[codes[i] + 1])
    for i in range(count):
        code = codes[i]
        if code >= 0:
            begin, size = offsets[code], ends[i] - starts[i]
            if offsets[code + 1] - begin != size or not _same_term(data, starts[i], arena, begin, size):
                codes[i] = find_term(data, starts[i], size, hashes[i], table, arena, offsets)


@kernel(inline="always")
def add_term(data, start, size, hashed, table, arena, offsets, counts):  # type: ignore[no-untyped-def]
    """A code for a term that has none; NO_ROOM when it does not fit.

    table: open addressing by the hash's upper half, uint64: that half, and code + 1 below it; 0 is empty. offsets: of the
    codes' texts in arena. counts[0]: codes, counts[1]: bytes of the arena in use.
    """
    code = counts[0]
    full = 2 * (code + 1) > table.shape[0] or code + 1 >= offsets.shape[0] or counts[1] + size + BLOCK_BYTES > arena.shape[0]
    if full:
        return np.int64(NO_ROOM)
    copy_items(arena, counts[1], data, start, size)
    counts[1] += size
    counts[0] = code + 1
    offsets[code + 1] = counts[1]
    mask = uint64(table.shape[0] - 1)
    slot = (hashed >> _HALF) & mask
    while table[slot] != uint64(0):
        slot = (slot + _ONE) & mask
    table[slot] = ((hashed >> _HALF) << _HALF) | uint64(code + 1)
    return code


@kernel(allocates=True)
def _encode(data, text_offsets, valid, first, codes, table, arena, offsets, counts):  # type: ignore[no-untyped-def]
    """Codes of the texts from `first` on; returns the first that does not fit, or their number."""
    hashes = np.empty(_BLOCK, np.uint64)
    mask = uint64(table.shape[0] - 1)
    while first < codes.shape[0]:
        count = min(_BLOCK, codes.shape[0] - first)
        for i in range(count):
            start = text_offsets[first + i]
            hashes[i] = term_hash(data, start, text_offsets[first + i + 1] - start)
            prefetch(table, np.int64((hashes[i] >> _HALF) & mask))  # type: ignore[arg-type]
        starts, here = text_offsets[first:], codes[first:]
        find_terms(data, starts, starts[1:], hashes, here, count, table, arena, offsets)
        for i in range(count):
            if valid.shape[0] > 0 and not valid[first + i]:
                here[i] = NO_CODE
            elif here[i] < 0:
                start, size = starts[i], starts[i + 1] - starts[i]
                code = find_term(data, start, size, hashes[i], table, arena, offsets)  # the block may have brought it
                if code < 0:
                    code = add_term(data, start, size, hashes[i], table, arena, offsets, counts)
                    if code < 0:
                        return np.int64(first + i)
                here[i] = code
        first += count
    return np.int64(codes.shape[0])


@kernel
def _move_table(old, table):  # type: ignore[no-untyped-def]
    mask = uint64(table.shape[0] - 1)
    for i in range(old.shape[0]):
        if old[i] != uint64(0):
            slot = (old[i] >> _HALF) & mask
            while table[slot] != uint64(0):
                slot = (slot + _ONE) & mask
            table[slot] = old[i]


# ---------------------------------------------------------------- the dictionary


class TermDictionary:
    """Terms <-> codes 0, 1, 2, ... in order of first appearance. RunFailed above `limit_bytes`."""

    def __init__(self, limit_bytes: int = 8 << 30) -> None:
        self.limit_bytes = limit_bytes
        self._table = np.zeros(1 << 12, np.uint64)
        self._arena = np.zeros(1 << 16, np.uint8)
        self._offsets = np.zeros(1 << 11, np.int64)
        self._counts = np.zeros(2, np.int64)
        self._blank_count = 0

    def __len__(self) -> int:
        return int(self._counts[0])

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._table.nbytes + self._arena.nbytes + self._offsets.nbytes

    def encode(self, texts: pa.Array | pa.ChunkedArray) -> I64:
        """Codes of terms in N-Triples syntax, in the spelling of this module; -1 for nulls. texts: a string type, or a
        dictionary of one. TypeError for others."""
        import pyarrow as pa

        if isinstance(texts, pa.ChunkedArray):
            return np.concatenate([np.empty(0, np.int64), *(self.encode(chunk) for chunk in texts.chunks)])
        if pa.types.is_dictionary(texts.type):
            codes = np.append(self.encode(texts.dictionary), NO_CODE)  # the last for null
            return codes[indexes_of(texts)]
        data, offsets, valid = text_buffers(texts)
        if len(data) < int(offsets[-1]) + BLOCK_BYTES:
            data, offsets = padded(data[int(offsets[0]) : int(offsets[-1])]), offsets - offsets[0]
        codes = np.empty(len(texts), np.int64)
        at = 0
        while True:
            at = int(_encode(data, offsets, valid, at, codes, *self.arrays))
            if at >= len(codes):
                return codes
            self.grow(int(offsets[at + 1] - offsets[at]))

    def code_of(self, text: str) -> int | None:
        """The code of a term; None if it has none."""
        data = np.frombuffer(text.encode(), np.uint8)
        code = int(_find_one(padded(data), len(data), *self.arrays[:3]))
        return None if code < 0 else code

    def add(self, text: str) -> int:
        """The code of a term, a new one if it has none."""
        import pyarrow as pa

        return int(self.encode(pa.array([text], pa.large_string()))[0])

    def text_of(self, code: int) -> str:
        """The term of a code."""
        return self._arena[self._offsets[code] : self._offsets[code + 1]].tobytes().decode()

    def texts(self) -> pa.LargeStringArray:
        """All terms, by code; a copy."""
        import pyarrow as pa

        data, offsets = self.bytes_of_terms()
        buffers = [None, pa.py_buffer(offsets.copy()), pa.py_buffer(data.copy())]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    def decode(self, codes: I64) -> pa.LargeStringArray:
        """The terms of codes, null for negative ones."""
        import pyarrow as pa

        data, offsets = self.bytes_of_terms()
        terms = pa.Array.from_buffers(pa.large_string(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        return terms.take(pa.array(codes, mask=codes < 0))

    def bytes_of_terms(self) -> tuple[U8, I64]:
        """The bytes of all terms, and int64 (n + 1,) offsets into them; views."""
        return self._arena[: int(self._counts[1])], self._offsets[: len(self) + 1]

    def new_blank_number(self) -> int:
        """0, 1, 2, ...: for blank nodes without a label."""
        self._blank_count += 1
        return self._blank_count - 1

    @property
    def arrays(self) -> tuple[NDArray[np.uint64], U8, I64, I64]:
        """table, arena, offsets and counts, as `add_term` takes them; valid until `grow`."""
        return self._table, self._arena, self._offsets, self._counts

    def grow(self, wanted: int) -> None:
        """Make room for a term of `wanted` bytes. RunFailed above the limit."""
        if len(self) + 1 >= _MOST_CODES:
            raise RunFailed(f"{len(self)} distinct RDF terms, more than codes can tell apart")
        if 2 * (len(self) + 1) > len(self._table) or len(self) + 1 >= len(self._offsets):
            factor = 4 if len(self._table) < _LARGE else 2  # a small one is soon outgrown
            self._offsets = _longer(self._offsets, len(self) + 1, factor * len(self._offsets))
            old, self._table = self._table, np.zeros(factor * len(self._table), np.uint64)
            _move_table(old, self._table)
        if int(self._counts[1]) + wanted + BLOCK_BYTES > len(self._arena):
            self._arena = _longer(self._arena, int(self._counts[1]), 2 * len(self._arena) + wanted)
        if self.nbytes > self.limit_bytes:
            raise RunFailed(f"the dictionary holds {len(self)} distinct RDF terms in {self.nbytes} bytes, above its limit")


def padded(data: U8) -> U8:
    """A copy with zeros behind it, which kernels may touch."""
    copy = np.empty(len(data) + BLOCK_BYTES, np.uint8)
    copy[: len(data)] = data
    copy[len(data) :] = 0
    return copy


def _longer(array: NDArray[Any], used: int, size: int) -> NDArray[Any]:
    """A larger copy; memory that nothing uses yet is not touched."""
    longer = np.empty(size, array.dtype)
    longer[:used] = array[:used]
    return longer


def text_buffers(texts: pa.Array) -> tuple[U8, I64, Bool]:
    """Bytes, int64 offsets (n + 1,) and validity (empty: all) of strings or binary. TypeError for other types."""
    import pyarrow as pa

    texts = decoded(texts)
    t = pa.types
    if not any(check(texts.type) for check in (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary, t.is_null)):
        raise TypeError(f"terms are strings, not {texts.type}")
    if not t.is_large_string(texts.type):
        texts = texts.cast(pa.large_binary() if t.is_large_binary(texts.type) or t.is_binary(texts.type) else pa.large_string())
    valid = booleans_of(texts.is_valid()) if texts.null_count else np.empty(0, np.bool_)
    if len(texts) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64), valid
    offsets = borrowed(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    held = texts.buffers()[2]
    data = np.empty(0, np.uint8) if held is None else borrowed(held, np.uint8)
    check_offsets(offsets, len(data), "terms", UserError)
    return data, offsets, valid


def indexes_of(texts: pa.DictionaryArray) -> I64:
    """Indices of a dictionary's rows, -1 for null."""
    indices = texts.indices
    found = integers_of(indices).astype(np.int64, copy=False)
    return np.where(booleans_of(indices.is_valid()), found, NO_CODE) if indices.null_count else found


# ---------------------------------------------------------------- one term


class Term(NamedTuple):
    """A term's parts. kind: iri, blank or literal. text: IRI, label or lexical form. language: in lower case. datatype: IRI;
    None for terms that are no literals."""

    kind: str
    text: str
    language: str | None = None
    datatype: str | None = None


_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_UNESCAPED = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = re.compile('["\\\\\x00-\x1f\x7f\ufffe\uffff]')
_ESCAPED = {'"': '\\"', "\\": "\\\\", **{char: f"\\{name}" for name, char in _UNESCAPED.items()}}


def split_term(text: str) -> Term:
    """The parts of a term in N-Triples syntax. ValueError when it is none."""
    if text[:1] == "<" and text[-1:] == ">":
        return Term("iri", unescape(text[1:-1]))
    if text[:2] == "_:":
        return Term("blank", text[2:])
    end = text.rfind('"')
    if text[:1] != '"' or end == 0:
        raise ValueError(f"no RDF term: {text}")
    value, suffix = unescape(text[1:end]), text[end + 1 :]
    if suffix[:1] == "@":
        return Term("literal", value, suffix[1:].lower(), LANG_STRING)
    if suffix[:3] == "^^<" and suffix[-1:] == ">":
        return Term("literal", value, None, unescape(suffix[3:-1]))
    if suffix:
        raise ValueError(f"no RDF term: {text}")
    return Term("literal", value, None, STRING)


def unescape(text: str) -> str:
    """The characters that a text with escapes stands for."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: _UNESCAPED.get(m[3], m[3]) if m[3] else chr(int(m[1] or m[2], 16)), text)


def escape(text: str) -> str:
    """The characters of a literal in N-Triples syntax."""
    return _TO_ESCAPE.sub(lambda m: _ESCAPED.get(m[0]) or f"\\u{ord(m[0]):04X}", text)


def join_term(term: Term) -> str:
    """A term in N-Triples syntax."""
    if term.kind == "iri":
        return f"<{term.text}>"
    if term.kind == "blank":
        return f"_:{term.text}"
    if term.language is not None:
        return f'"{escape(term.text)}"@{term.language.lower()}'
    return f'"{escape(term.text)}"' + ("" if term.datatype in (None, STRING) else f"^^<{term.datatype}>")


# ---------------------------------------------------------------- terms of computed values

INTEGER, DECIMAL, FLOAT, DOUBLE = range(4)  # ranks of numeric types, as arithmetic widens them
_OF_RANK = tuple(f'"^^<{XSD}{name}>' for name in ("integer", "decimal", "float", "double"))
TRUE, FALSE = f'"true"^^<{XSD}boolean>', f'"false"^^<{XSD}boolean>'


def number_texts(numbers: F64, ranks: I8, integers: I64 | None = None) -> pa.LargeStringArray:
    """Numeric literals in the canonical form of their types; null where an integer or decimal is to be infinite or no number.

    numbers: (n,). ranks: (n,), or one for all. integers: (n,), the values of those of rank 0, where a double is too coarse.
    A decimal has at most 15 significant digits.
    """
    import pyarrow as pa

    texts: list[str | None] = []
    exact: list[Any] = [None] * len(numbers) if integers is None else integers.tolist()
    for number, rank, integer in zip(numbers.tolist(), np.broadcast_to(ranks, numbers.shape).tolist(), exact, strict=True):
        if rank == INTEGER and integer is not None:
            lexical: str | None = str(integer)
        elif rank in (INTEGER, DECIMAL):
            lexical = _decimal_text(number, rank)
        else:
            lexical = _double_text(number, rank)
        texts.append(None if lexical is None else f'"{lexical}{_OF_RANK[rank]}')
    return pa.array(texts, pa.large_string())


def _decimal_text(number: float, rank: int) -> str | None:
    if not np.isfinite(number):
        return None
    if number.is_integer() and (rank == INTEGER or abs(number) < 1e15):
        return str(int(number))
    text = f"{Decimal(f'{number:.15g}'):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _double_text(number: float, rank: int) -> str:
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    if rank == FLOAT and abs(number) > float(np.finfo(np.float32).max):
        return "INF" if number > 0 else "-INF"
    sign, digits, exponent = Decimal(str(np.float32(number)) if rank == FLOAT else repr(number)).as_tuple()
    mantissa = "".join(map(str, digits)).rstrip("0") or "0"
    if mantissa == "0":
        exponent, digits = 0, (0,)
    power = int(exponent) + len(digits) - 1
    return f"{'-' * sign}{mantissa[0]}.{mantissa[1:] or '0'}E{power}"


def string_texts(values: pa.Array, languages: pa.Array | None = None) -> pa.LargeStringArray:
    """String literals of n values; null stays null. languages: (n,) tags in lower case, null for none."""
    import pyarrow as pa

    tags = [None] * len(values) if languages is None else languages.to_pylist()
    return pa.array(
        [
            None if value is None else f'"{escape(value)}"' + ("" if tag is None else f"@{tag}")
            for value, tag in zip(values.to_pylist(), tags, strict=True)
        ],
        pa.large_string(),
    )


def boolean_texts(values: Bool) -> pa.LargeStringArray:
    """The literals true and false."""
    import pyarrow as pa

    return pa.array([FALSE, TRUE], pa.large_string()).take(pa.array(values.astype(np.int8)))
