"""Expected blocks and mini-partition-groups of windows, from expected tuple counts.

What: `estimate_group`: the rules of `state.extendible_hash` applied to expected counts, for one partition-group.
Why: a chain's last block is partly empty and its first one partly expired, so the memory of windows depends on the number of
chains.
Stays out: the input (`forecast.input_profile`), bytes (`forecast.memory`).

A partition-group is given as cells: expected window tuples by the lowest `depth` bits of the key's hash. Nodes of the directory
are sums of cells. A node splits with the probability that its tuples, whose number varies, and the expired ones in its blocks
exceed 2 * theta; below the cells, tuples are assumed to halve, except those of the most frequent key, which stay together.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from swjoin.core.kernel_cache import kernel
from swjoin.state.extendible_hash import MAX_DEPTH

F64 = NDArray[np.float64]

MINIS, BLOCKS, DEPTH = 0, 1, 2  # of `estimate_group`


@kernel
def chain_blocks(tuples: float, size: int, expires: bool) -> float:
    """Expected blocks of a mini-partition with `tuples` live tuples. expires: its oldest block is partly expired."""
    if tuples <= 0.0:
        return 0.0
    spare = 1.0 + 0.3 * min(1.0, tuples / size) if expires else 1.0 - 0.5 * min(1.0, tuples / size)
    return float(-math.expm1(-tuples) * (tuples / size + spare))


@kernel
def _leaf(left: float, right: float, size: int, expires: bool) -> float:
    return float(chain_blocks(left, size, expires) + chain_blocks(right, size, expires))


@kernel
def _splits(tuples: float, top: float, theta: int, ragged: float, tuned: float) -> float:
    """Probability that a node splits, with `tuples` tuples, `top` of them of one key."""
    tuples, top = tuples * tuned, top * tuned
    if theta == 0 or tuples <= 0.0 or 2.0 * (tuples - top) < theta:
        return 0.0
    spread = math.sqrt(tuples)
    return 0.5 * (1.0 + math.erf((tuples + ragged + spread - 2.0 * theta) / (spread * math.sqrt(2.0))))


@kernel
def _below(
    left: float,
    right: float,
    top: float,
    levels: int,
    theta: int,
    ragged: float,
    tuned: float,
    size: int,
    expires: bool,
    out: F64,
) -> None:
    """A cell and the nodes below it. out: minis, blocks, depth below the cell."""
    out[:] = 0.0
    share = left / max(left + right, 1e-300)
    rest = left + right - top
    for level in range(levels):
        if _splits(rest + top, top, theta, ragged, tuned) < 0.5:
            break
        rest /= 2.0
        other, halvings = rest, 0  # the half without the key
        while halvings < levels - level - 1 and _splits(other, 0.0, theta, ragged, tuned) >= 0.5:
            other /= 2.0
            halvings += 1
        out[MINIS] += 2.0**halvings
        out[BLOCKS] += 2.0**halvings * _leaf(other * share, other * (1.0 - share), size, expires)
        out[DEPTH] = max(out[DEPTH], level + 1.0 + halvings)
    n = rest + top
    out[MINIS] += 1.0
    out[BLOCKS] += _leaf(n * share, n * (1.0 - share), size, expires)


@kernel(allocates=True)
def estimate_group(
    left: F64, right: F64, top: F64, depth: int, theta: int, tuned: float, size: int, expires: bool, out: F64
) -> None:
    """out: expected mini-partition-groups, blocks, and the global depth.

    left, right, top: by cell, float64 (2^depth,), live tuples of either stream, and of the most frequent key in both; they are
    overwritten. theta in tuples of both streams, 0: no tuning. tuned: share of the tuples that are left when tuning runs, after
    expiry. size: tuples of a block.
    """
    ragged = float(size) if expires else 0.0  # half a block of each chain has expired, on average
    cells = 1 << depth
    minis, blocks, deep = np.empty(cells), np.empty(cells), np.empty(cells)
    for i in range(cells):
        _below(left[i], right[i], top[i], MAX_DEPTH - depth, theta, ragged, tuned, size, expires, out)
        minis[i], blocks[i], deep[i] = out[MINIS], out[BLOCKS], out[DEPTH]
    for level in range(depth - 1, -1, -1):
        half = 1 << level
        for i in range(half):
            left[i] += left[i + half]
            right[i] += right[i + half]
            top[i] = max(top[i], top[i + half])
            chance = _splits(left[i] + right[i], top[i], theta, ragged, tuned)
            minis[i] = (1.0 - chance) + chance * (minis[i] + minis[i + half])
            blocks[i] = (1.0 - chance) * _leaf(left[i], right[i], size, expires) + chance * (blocks[i] + blocks[i + half])
            deep[i] = 1.0 + max(deep[i], deep[i + half]) if chance >= 0.5 else 0.0
    out[MINIS], out[BLOCKS], out[DEPTH] = minis[0], blocks[0], deep[0]
