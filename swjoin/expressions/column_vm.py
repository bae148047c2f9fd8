"""Residual predicates over columns: one tuple of one side against many of the other, an instruction at a time.

What: `Columns`, scratch; `load_columns`, the values of the many; `evaluate_columns`, which drops those that do not satisfy the
predicate; `has_columns`, which programs can be run so.
Why: `expressions.vm` decodes every instruction for every pair; here an instruction is decoded for LANES pairs, and its loop is
one that a processor does eight at a time.
Stays out: what programs mean (`expressions.vm`; both give the same verdicts), text, which tuples meet (`state.partner_runs`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from swjoin.core.batch import I64, U8, U64
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import FLAGS, REF
from swjoin.expressions.vm import (
    ABS,
    ABS_FLOAT,
    ADD,
    ADD_FLOAT,
    AND,
    DIVIDE,
    EQUAL,
    FLOAT,
    FLOAT_LITERAL,
    INT,
    INT_LITERAL,
    IS_NULL,
    KEY_OF,
    LESS,
    MULTIPLY,
    MULTIPLY_FLOAT,
    NEGATE,
    NEGATE_FLOAT,
    NOT,
    NULL,
    OR,
    PAGE_BITS,
    SUBTRACT,
    SUBTRACT_FLOAT,
    TEXT,
    TEXT_LITERAL,
    TIME_OF,
    TO_FLOAT,
    WIDTH,
    Program,
    Residual,
    Rows,
    integer_at,
)

LANES = 1024  # pairs an instruction works on: a stack of a few such vectors stays in the first-level cache
_LOADS = 8  # columns of the many that a program may read
_DEEPEST = 16  # values on the stack

F64 = NDArray[np.float64]


class Columns(NamedTuple):
    """Scratch of `evaluate_columns`. A column or vector has integers or floats, and which of them are known (1, not null)."""

    value: I64  # (_LOADS, tuples) columns of the many
    real: F64
    known: U8
    values: I64  # (_DEEPEST, LANES) the stack
    reals: F64
    knowns: U8


def new_columns(tuples: int) -> Columns:
    """Room for so many tuples. Memory becomes resident as it is used."""
    shape, stack = (_LOADS, tuples), (_DEEPEST, LANES)
    return Columns(
        np.empty(shape, np.int64),
        np.empty(shape, np.float64),
        np.empty(shape, np.uint8),
        np.empty(stack, np.int64),
        np.empty(stack, np.float64),
        np.empty(stack, np.uint8),
    )


def has_columns(program: Program) -> bool:
    """Whether a program can be run over columns of either side: no text, not too many columns, not too deep."""
    code = program.code.reshape(-1, WIDTH)
    ops = code[:, 0]
    loads = [int(((ops < TEXT) & (code[:, 1] == side)).sum()) for side in (0, 1)]
    pushed = ops <= NULL
    taken = (ADD, SUBTRACT, MULTIPLY, ADD_FLOAT, SUBTRACT_FLOAT, MULTIPLY_FLOAT, DIVIDE, AND, OR)  # two from the stack
    popped = np.isin(ops, taken) | (ops >= EQUAL)
    depth = int(np.cumsum(pushed.astype(np.int64) - popped).max(initial=0))
    text = bool(((ops == TEXT) | (ops == TEXT_LITERAL) | (ops >= EQUAL + 6)).any())
    return len(code) > 0 and not text and max(loads) <= _LOADS and depth <= _DEEPEST


@kernel
def _number(rows: Rows, ref: int, op: int, offset: int, size: int, bit: int) -> tuple[int, float, bool]:
    """A column's value in a row: as an integer or as a float, and whether it is known."""
    base = (rows.slots[(ref >> PAGE_BITS) - rows.shape[0]] << PAGE_BITS | (ref & ((1 << PAGE_BITS) - 1))) * rows.shape[1]
    arena = rows.arena
    if bit >= 0 and (arena[base + (bit >> 3)] >> np.uint8(bit & 7)) & 1 != 0:
        return 0, 0.0, False
    if op == INT:
        return integer_at(arena, base + offset, size), 0.0, True
    raw = arena[base + offset : base + offset + size]
    return 0, np.float64(raw.view(np.float32)[0]) if size == 4 else raw.view(np.float64)[0], True


@kernel
def load_columns(residual: Residual, side: int, records: I64, place: U64, columns: Columns) -> None:
    """The columns of a side that its program reads, for the tuples whose records begin at `place`, uint64 (n,)."""
    code = residual.program.code
    load = 0
    for i in range(code.shape[0] // WIDTH):
        at = i * WIDTH
        op = code[at]
        if op >= TEXT or code[at + 1] != side:
            continue
        value, real, known = columns.value[load], columns.real[load], columns.known[load]
        load += 1
        for j in range(place.shape[0]):
            ref = records[np.int64(place[j]) + REF] & ~FLAGS
            if side == 0:
                found = _number(residual.left, ref, op, code[at + 2], code[at + 3], code[at + 4])
            else:
                found = _number(residual.right, ref, op, code[at + 2], code[at + 3], code[at + 4])
            value[j], real[j], known[j] = found[0], found[1], np.uint8(found[2])


@kernel
def _copy(to, source, first, n):  # type: ignore[no-untyped-def]
    for j in range(n):
        to[j] = source[first + j]


@kernel
def _fill(to, number, n):  # type: ignore[no-untyped-def]
    for j in range(n):
        to[j] = number


@kernel
def _one_operand(op, n, value, real, known):  # type: ignore[no-untyped-def]
    """An operation on the vector on top of the stack."""
    if op == TO_FLOAT:
        for j in range(n):
            real[j] = np.float64(value[j])
    elif op in (NEGATE, ABS):
        for j in range(n):
            wanted = (op == NEGATE) | (value[j] < 0)
            known[j] &= np.uint8(value[j] != -(1 << 63))  # below 0, so wanted
            value[j] = np.int64(uint64(0) - uint64(value[j])) if wanted else value[j]
    elif op == NEGATE_FLOAT:
        for j in range(n):
            real[j] = -real[j]
    elif op == ABS_FLOAT:
        for j in range(n):
            real[j] = abs(real[j])
    elif op == NOT:
        for j in range(n):
            value[j] = 1 - value[j]
    else:  # IS_NULL
        for j in range(n):
            value[j] = np.int64(1) - np.int64(known[j])
            known[j] = 1


@kernel
def _logical(op, n, value, known, other, sure):  # type: ignore[no-untyped-def]
    """AND, OR of the two vectors on top of the stack, into the lower one."""
    for j in range(n):
        both = known[j] & sure[j]
        decides = np.int64(op == OR)  # the operand that decides alone
        alone = (known[j] & np.uint8((value[j] != 0) == decides)) | (sure[j] & np.uint8((other[j] != 0) == decides))
        value[j] = decides if alone else 1 - decides
        known[j] = both | alone


@kernel
def _integers(op, n, value, known, other, sure):  # type: ignore[no-untyped-def]
    if op == ADD:
        for j in range(n):
            out = np.int64(uint64(value[j]) + uint64(other[j]))
            known[j] &= sure[j] & np.uint8((value[j] ^ out) & (other[j] ^ out) >= 0)
            value[j] = out
    elif op == SUBTRACT:
        for j in range(n):
            out = np.int64(uint64(value[j]) - uint64(other[j]))
            known[j] &= sure[j] & np.uint8((value[j] ^ other[j]) & (value[j] ^ out) >= 0)
            value[j] = out
    elif op == MULTIPLY:
        for j in range(n):
            known[j] &= sure[j] & np.uint8(abs(np.float64(value[j]) * np.float64(other[j])) < 9.2e18)
            value[j] = np.int64(uint64(value[j]) * uint64(other[j]))
    elif op == EQUAL:
        for j in range(n):
            known[j] &= sure[j]
            value[j] = np.int64(value[j] == other[j])
    elif op == LESS:
        for j in range(n):
            known[j] &= sure[j]
            value[j] = np.int64(value[j] < other[j])
    else:
        for j in range(n):
            known[j] &= sure[j]
            value[j] = np.int64(value[j] <= other[j])


@kernel
def _floats(op, n, value, real, known, other, sure):  # type: ignore[no-untyped-def]
    if op == ADD_FLOAT:
        for j in range(n):
            known[j] &= sure[j]
            real[j] += other[j]
    elif op == SUBTRACT_FLOAT:
        for j in range(n):
            known[j] &= sure[j]
            real[j] -= other[j]
    elif op == MULTIPLY_FLOAT:
        for j in range(n):
            known[j] &= sure[j]
            real[j] *= other[j]
    elif op == DIVIDE:
        for j in range(n):
            there = other[j] != 0.0
            known[j] &= sure[j] & np.uint8(there)
            real[j] /= other[j] if there else 1.0
    elif op == EQUAL + 3:
        for j in range(n):
            known[j] &= sure[j]
            value[j] = np.int64(real[j] == other[j])
    elif op == LESS + 3:
        for j in range(n):
            known[j] &= sure[j]
            value[j] = np.int64(real[j] < other[j])
    else:
        for j in range(n):
            known[j] &= sure[j]
            value[j] = np.int64(real[j] <= other[j])


@kernel
def evaluate_columns(
    residual: Residual, s: int, ref: int, key: int, time: int, first: int, times: I64, columns: Columns, verdict: U8, n: int
) -> None:
    """verdict[j] = 0 for the pairs of one tuple with the tuples first + j, j < n <= LANES, that do not satisfy the predicate.

    s: the stream of the one; ref, key, time: its payload reference, key and time. times: of the many; `columns` has been loaded
    for them.
    """
    code, literals = residual.program.code, residual.program.floats
    top, load, start, many = -1, 0, uint64(first), uint64(n)
    for i in range(code.shape[0] // WIDTH):
        at = i * WIDTH
        op, side, offset = code[at], code[at + 1], code[at + 2]
        if op <= NULL:
            top += 1
            value, real, known = columns.values[top], columns.reals[top], columns.knowns[top]
            if op <= FLOAT and side != s:
                if op == INT:
                    _copy(value, columns.value[load], start, many)
                else:
                    _copy(real, columns.real[load], start, many)
                _copy(known, columns.known[load], start, many)
                load += 1
                continue
            if op == TIME_OF and side != s:
                _copy(value, times, start, many)
                _fill(known, np.uint8(1), many)
                continue
            number, fraction, there = np.int64(0), 0.0, op != NULL
            if op <= FLOAT and side == 0:
                number, fraction, there = _number(residual.left, ref, op, offset, code[at + 3], code[at + 4])
            elif op <= FLOAT:
                number, fraction, there = _number(residual.right, ref, op, offset, code[at + 3], code[at + 4])
            elif op == KEY_OF:
                number = np.int64(key)
            elif op == TIME_OF:
                number = np.int64(time)
            elif op == INT_LITERAL:
                number = offset
            elif op == FLOAT_LITERAL:
                fraction = literals[offset]
            if op in (FLOAT, FLOAT_LITERAL):
                _fill(real, fraction, many)
            else:
                _fill(value, number, many)
            _fill(known, np.uint8(there), many)
        elif op in (TO_FLOAT, NEGATE, ABS, NEGATE_FLOAT, ABS_FLOAT, NOT, IS_NULL):
            _one_operand(op, many, columns.values[top], columns.reals[top], columns.knowns[top])
        else:
            top -= 1
            value, real, known = columns.values[top], columns.reals[top], columns.knowns[top]
            sure = columns.knowns[top + 1]
            if op in (AND, OR):
                _logical(op, many, value, known, columns.values[top + 1], sure)
            elif ADD <= op <= MULTIPLY or EQUAL <= op < EQUAL + 3:
                _integers(op, many, value, known, columns.values[top + 1], sure)
            else:
                _floats(op, many, value, real, known, columns.reals[top + 1], sure)
    value, known = columns.values[0], columns.knowns[0]
    for j in range(many):
        verdict[j] &= known[j] & np.uint8(value[j] != 0)
