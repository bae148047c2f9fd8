"""Virtual machine of residual predicates: a stack machine over payload rows, as a kernel.

What: `Program`, instructions over both sides' columns; `Rows`, the storage of payload; `evaluate`, which drops the candidates
that do not satisfy the predicate; `program_out`, `program_in`, programs as JSON values.
Why: the predicate decides whether tuples match, so it is evaluated where matches are found, before they are counted or marked;
and slaves have no Arrow.
Stays out: text, names and types (`expressions.parser`, `expressions.compiler`).

Values are 64-bit integers (also truth values and times), 64-bit floats, or text (a range of bytes, compared byte by byte); each
may be null. As in SQL: operations on null give null, `and`, `or`, `not` are three-valued, and a predicate holds if it is true.
Integer results beyond 64 bits (products from 9.2e18 on) and divisions by zero are null.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from swjoin.core.batch import I64, U8
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import FLAGS, KEY, REF, TS

# instruction: opcode, side, offset of the value, its bytes or first entry in `tails`, null bit or -1, entries in `tails`
WIDTH = 6
INT, FLOAT, TEXT, KEY_OF, TIME_OF, INT_LITERAL, FLOAT_LITERAL, TEXT_LITERAL, NULL = range(9)
TO_FLOAT, ADD, SUBTRACT, MULTIPLY, NEGATE, ABS, ADD_FLOAT, SUBTRACT_FLOAT, MULTIPLY_FLOAT, DIVIDE = range(9, 19)
NEGATE_FLOAT, ABS_FLOAT, AND, OR, NOT, IS_NULL = range(19, 25)
EQUAL, LESS, LESS_EQUAL = 25, 26, 27  # of integers; of floats 3 more, of text 6 more
DEEPEST = 64  # values on the stack

PAGE_BITS = 12  # of a payload reference: the row within its page


class Program(NamedTuple):
    """code: int64 (instructions * WIDTH,); empty: always true. floats, text: literals. tails: offsets, in a row's fixed part,
    of the lengths of preceding tails."""

    code: I64
    floats: NDArray[np.float64]
    text: U8
    tails: I64


class Rows(NamedTuple):
    """Payload of one stream: pages of fixed parts, and tails (`state.payload_store`)."""

    arena: U8
    slots: I64
    tail_offsets: I64
    tail_bytes: U8
    shape: I64  # (3,) first page, width of the fixed part, reference of the first tail


class Residual(NamedTuple):
    """A predicate and both sides' payload."""

    program: Program
    left: Rows
    right: Rows


def no_rows() -> Rows:
    nothing, none = np.empty(0, np.int64), np.empty(0, np.uint8)
    return Rows(none, nothing, nothing, none, np.zeros(3, np.int64))


def program_out(program: Program) -> dict[str, Any]:
    """A program as JSON values."""
    return {name: values.tolist() for name, values in program._asdict().items()}


def program_in(plain: dict[str, Any]) -> Program:
    kinds = {"code": np.int64, "floats": np.float64, "text": np.uint8, "tails": np.int64}
    return Program(**{name: np.array(plain[name], kind) for name, kind in kinds.items()})


@kernel
def integer_at(arena: U8, at: int, size: int) -> int:
    """A little-endian number of 1, 2, 4 or 8 bytes; negative size: without a sign."""
    width = size if size > 0 else -size
    value, first = uint64(0), uint64(at)
    if width == 8:
        for i in range(uint64(0), uint64(8)):  # one load
            value |= uint64(arena[first + i]) << (uint64(8) * i)
        return np.int64(value)  # type: ignore[return-value]
    for i in range(uint64(0), uint64(width)):
        value |= uint64(arena[first + i]) << (uint64(8) * i)
    if size > 0 and width < 8 and value >> uint64(8 * width - 1) != uint64(0):
        value |= uint64(0xFFFFFFFFFFFFFFFF) << uint64(8 * width)
    return np.int64(value)  # type: ignore[return-value]


@kernel
def _compare_bytes(one: U8, at: int, length: int, two: U8, to: int, size: int) -> int:
    """Below, at or above 0 if the first text is less than, equal to, or greater than the second."""
    for i in range(min(length, size)):
        if one[at + i] != two[to + i]:
            return 1 if one[at + i] > two[to + i] else -1
    return length - size


@kernel(allocates=True)
def evaluate(
    program: Program,
    left: Rows,
    right: Rows,
    s: int,
    probe_rows: I64,
    rows: I64,
    probe_at: NDArray[np.uint64],
    row_at: NDArray[np.uint64],
    verdict: U8,
    start: int,
    stop: int,
) -> None:
    """verdict[c] = 0 for the candidates in start .. stop - 1 that do not satisfy the predicate.

    s: the stream of the probes. probe_at, row_at: starts of a candidate's two records in probe_rows, rows.
    """
    code, floats, text, tails = program.code, program.floats, program.text, program.tails
    arenas_l, slots_l, offsets_l, bytes_l, shape_l = left.arena, left.slots, left.tail_offsets, left.tail_bytes, left.shape
    arenas_r, slots_r, offsets_r, bytes_r, shape_r = right.arena, right.slots, right.tail_offsets, right.tail_bytes, right.shape
    value, length, source = np.zeros(DEEPEST, np.int64), np.zeros(DEEPEST, np.int64), np.zeros(DEEPEST, np.int64)
    real, known = np.zeros(DEEPEST, np.float64), np.zeros(DEEPEST, np.bool_)
    count = code.shape[0] // WIDTH
    row_bits = (1 << PAGE_BITS) - 1
    for c in range(start, stop):
        if not verdict[c]:
            continue
        p, r = np.int64(probe_at[c]), np.int64(row_at[c])
        ref_l = (probe_rows[p + REF] if s == 0 else rows[r + REF]) & ~FLAGS
        ref_r = (rows[r + REF] if s == 0 else probe_rows[p + REF]) & ~FLAGS
        top = -1
        for i in range(count):
            at = i * WIDTH
            op, side, offset, size, bit = code[at], code[at + 1], code[at + 2], code[at + 3], code[at + 4]
            if op <= TEXT:
                top += 1
                if side == 0:
                    slot, first, width, ref, arena = slots_l, shape_l[0], shape_l[1], ref_l, arenas_l
                else:
                    slot, first, width, ref, arena = slots_r, shape_r[0], shape_r[1], ref_r, arenas_r
                base = (slot[(ref >> PAGE_BITS) - first] << PAGE_BITS | (ref & row_bits)) * width
                known[top] = bit < 0 or (arena[base + (bit >> 3)] >> np.uint8(bit & 7)) & 1 == 0
                if not known[top]:
                    continue
                if op == INT:
                    value[top] = integer_at(arena, base + offset, size)
                elif op == FLOAT:
                    raw = arena[base + offset : base + offset + size]
                    real[top] = np.float64(raw.view(np.float32)[0]) if size == 4 else raw.view(np.float64)[0]
                else:
                    first_byte = offsets_l[ref - shape_l[2]] if side == 0 else offsets_r[ref - shape_r[2]]
                    for k in range(size, size + code[at + 5]):
                        first_byte += integer_at(arena, base + tails[k], np.int64(-4))
                    ends = offsets_l[ref - shape_l[2] + 1] if side == 0 else offsets_r[ref - shape_r[2] + 1]
                    first_byte = min(first_byte, ends)  # corrupt lengths must not read beyond the row's tail
                    value[top], length[top], source[top] = (
                        first_byte,
                        min(integer_at(arena, base + offset, np.int64(-4)), ends - first_byte),
                        side,
                    )
            elif op == KEY_OF:
                top += 1
                value[top], known[top] = probe_rows[p + KEY], True
            elif op == TIME_OF:
                top += 1
                value[top], known[top] = probe_rows[p + TS] if side == s else rows[r + TS], True
            elif op == INT_LITERAL:
                top += 1
                value[top], known[top] = offset, True
            elif op == FLOAT_LITERAL:
                top += 1
                real[top], known[top] = floats[offset], True
            elif op == TEXT_LITERAL:
                top += 1
                value[top], length[top], source[top], known[top] = offset, size, 2, True
            elif op == NULL:
                top += 1
                known[top] = False
            elif op == TO_FLOAT:
                real[top] = np.float64(value[top])
            elif op in (NEGATE, ABS):
                if op == NEGATE or value[top] < 0:
                    known[top] = known[top] and value[top] != -(1 << 63)
                    value[top] = -value[top]
            elif op == NEGATE_FLOAT:
                real[top] = -real[top]
            elif op == ABS_FLOAT:
                real[top] = abs(real[top])
            elif op == NOT:
                value[top] = 1 - value[top]
            elif op == IS_NULL:
                value[top] = 0 if known[top] else 1
                known[top] = True
            else:
                top -= 1
                both = known[top] and known[top + 1]
                one, two = value[top], value[top + 1]
                if op == AND:
                    false = (known[top] and one == 0) or (known[top + 1] and two == 0)
                    value[top], known[top] = 0 if false else 1, both or false
                elif op == OR:
                    true = (known[top] and one != 0) or (known[top + 1] and two != 0)
                    value[top], known[top] = 1 if true else 0, both or true
                else:
                    known[top] = both
                    if not both:
                        continue
                    if op == ADD:  # unsigned: the compiler assumes that signed results do not overflow
                        value[top] = np.int64(uint64(one) + uint64(two))
                        known[top] = (one ^ value[top]) & (two ^ value[top]) >= 0
                    elif op == SUBTRACT:
                        value[top] = np.int64(uint64(one) - uint64(two))
                        known[top] = (one ^ two) & (one ^ value[top]) >= 0
                    elif op == MULTIPLY:
                        value[top] = np.int64(uint64(one) * uint64(two))
                        known[top] = abs(np.float64(one) * np.float64(two)) < 9.2e18  # a little less than 2^63
                    elif op == ADD_FLOAT:
                        real[top] += real[top + 1]
                    elif op == SUBTRACT_FLOAT:
                        real[top] -= real[top + 1]
                    elif op == MULTIPLY_FLOAT:
                        real[top] *= real[top + 1]
                    elif op == DIVIDE:
                        known[top] = real[top + 1] != 0.0
                        if known[top]:
                            real[top] /= real[top + 1]
                    elif op < EQUAL + 3:
                        order = -1 if one < two else 1 if one > two else 0
                        value[top] = 1 if (order == 0 and op != LESS) or (order < 0 and op != EQUAL) else 0
                    elif op < EQUAL + 6:
                        a, b = real[top], real[top + 1]
                        holds = a == b if op == EQUAL + 3 else a < b if op == LESS + 3 else a <= b
                        value[top] = 1 if holds else 0
                    else:
                        mine = bytes_l if source[top] == 0 else bytes_r if source[top] == 1 else text
                        theirs = bytes_l if source[top + 1] == 0 else bytes_r if source[top + 1] == 1 else text
                        order = _compare_bytes(mine, one, length[top], theirs, two, length[top + 1])
                        value[top] = 1 if (order == 0 and op != LESS + 6) or (order < 0 and op != EQUAL + 6) else 0
        if not known[top] or value[top] == 0:
            verdict[c] = 0
