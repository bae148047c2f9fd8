"""Machine instructions that numba does not offer, as intrinsics: compare 64 tags at once, count zero bits, prefetch.

What: `match_mask`, `range_mask`, `count_ones`, `trailing_zeros`, `leading_zeros`, `prefetch`, `copy_items`; each lowers to
one LLVM operation on any processor.
Why: one pass over a block has to cost about a nanosecond; a 64-lane comparison whose result is a bit mask is the way there
(two instructions with AVX-512, a handful with SSE or NEON).
Stays out: anything that knows what a block is. With the JIT off (NUMBA_DISABLE_JIT=1) plain Python stands in.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64  # tags per mask

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]

    def match_mask(tags: Any, start: int, tag: Any) -> np.uint64:
        """Bit j is set where tags[start + j] == tag, 0 <= j < 64."""
        window = tags[start : start + LANES]
        return np.uint64(sum(1 << j for j in range(len(window)) if window[j] == tag))

    def range_mask(tags: Any, start: int, low: int, reach: int) -> np.uint64:
        """Bit j is set where tags[start + j] is one of low .. low + reach mod 2^16, 0 <= j < 64."""
        window = tags[start : start + LANES]
        return np.uint64(sum(1 << j for j in range(len(window)) if int(window[j]) - int(low) & 0xFFFF <= int(reach)))

    def count_ones(mask: np.uint64) -> int:
        """Set bits of a uint64."""
        return int(mask).bit_count()

    def trailing_zeros(mask: np.uint64) -> int:
        """Index of the lowest set bit of a uint64 that is not 0."""
        value = int(mask)
        return (value & -value).bit_length() - 1

    def leading_zeros(value: int) -> int:
        """Zero bits above the highest set bit of an int64 that is above 0."""
        return 64 - int(value).bit_length()

    def prefetch(array: Any, index: int) -> None:
        """A hint; nothing to do."""

    def copy_items(target: Any, to: int, source: Any, start: int, count: int) -> None:
        """target[to : to + count] = source[start : start + count]; arrays of one dtype that do not overlap."""
        target[to : to + count] = source[start : start + count]

else:

    def _lanes(builder: Any, value: Any) -> Any:
        """A tag in all lanes."""
        vector, index = ir.VectorType(value.type, LANES), ir.VectorType(ir.IntType(32), LANES)
        lane = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(lane, ir.Constant(vector, ir.Undefined), ir.Constant(index, [0] * LANES))

    def _tags_at(context: Any, builder: Any, kind: Any, tags: Any, start: Any) -> Any:
        data = context.make_array(kind)(context, builder, tags).data
        tag = ir.IntType(kind.dtype.bitwidth)
        at = builder.bitcast(builder.gep(data, [start]), ir.VectorType(tag, LANES).as_pointer())
        return builder.load(at, align=tag.width // 8)

    @intrinsic  # type: ignore[misc]
    def match_mask(typing_context: Any, tags: Any, start: Any, tag: Any) -> Any:
        """Bit j is set where tags[start + j] == tag, 0 <= j < 64. tags: uint16 or uint8, at least start + 64 long (not
        checked)."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            there = _tags_at(context, builder, signature.args[0], args[0], args[1])
            return builder.bitcast(builder.icmp_unsigned("==", there, _lanes(builder, args[2])), ir.IntType(64))

        return types.uint64(tags, types.int64, tags.dtype), build

    @intrinsic  # type: ignore[misc]
    def range_mask(typing_context: Any, tags: Any, start: Any, low: Any, reach: Any) -> Any:
        """Bit j is set where tags[start + j] is one of low .. low + reach mod 2^16. tags: as of `match_mask`."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            there = _tags_at(context, builder, signature.args[0], args[0], args[1])
            beyond = builder.sub(there, _lanes(builder, args[2]))
            return builder.bitcast(builder.icmp_unsigned("<=", beyond, _lanes(builder, args[3])), ir.IntType(64))

        return types.uint64(tags, types.int64, types.uint16, types.uint16), build

    @intrinsic  # type: ignore[misc]
    def count_ones(typing_context: Any, mask: Any) -> Any:
        """Set bits of a uint64."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ctpop(args[0])

        return types.int64(types.uint64), build

    @intrinsic  # type: ignore[misc]
    def trailing_zeros(typing_context: Any, mask: Any) -> Any:
        """Index of the lowest set bit of a uint64 that is not 0."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

        return types.int64(types.uint64), build

    @intrinsic  # type: ignore[misc]
    def leading_zeros(typing_context: Any, value: Any) -> Any:
        """Zero bits above the highest set bit of an int64 that is above 0."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

        return types.int64(types.int64), build

    @intrinsic  # type: ignore[misc]
    def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
        """Ask for the cache line of array[index], which will be read soon. A wrong index is harmless."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            at = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
            flag = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [at.type, flag, flag, flag])
            hint = builder.module.declare_intrinsic("llvm.prefetch", [at.type], kind)
            builder.call(hint, [at, ir.Constant(flag, 0), ir.Constant(flag, 3), ir.Constant(flag, 1)])  # read, keep, data
            return context.get_dummy_value()

        return types.void(array, types.int64), build

    @intrinsic  # type: ignore[misc]
    def copy_items(typing_context: Any, target: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
        """target[to : to + count] = source[start : start + count]; arrays of one dtype, no overlap. Not checked."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            into = context.make_array(signature.args[0])(context, builder, args[0]).data
            out_of = context.make_array(signature.args[2])(context, builder, args[2]).data
            size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
            cgutils.raw_memcpy(builder, builder.gep(into, [args[1]]), builder.gep(out_of, [args[3]]), args[4], size)
            return context.get_dummy_value()

        return types.void(target, types.int64, source, types.int64, types.int64), build
