"""Production delays in bounded memory: a histogram with logarithmic buckets.

What: `record_delay`, `record_delays` (kernels), `histogram_quantile`, `HISTOGRAM_SIZE`.
Why: percentiles over 10^7 pairs without keeping 10^7 delays; histograms of slaves and epochs add up.
Stays out: what a delay is (`state.join_kernel` and the clock given to it).
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import leading_zeros
from swjoin.state.arrays import STAT_DELAY_MAX, STAT_DELAY_SUM

_SUB_BITS = 4  # 16 histogram buckets per power of two: at most 1/16 wide, at most 3.2 % from the middle
HISTOGRAM_SIZE = 16 + 59 * 16


@kernel(inline="always")
def histogram_index(value_us):  # type: ignore[no-untyped-def]
    """Bucket of a delay in microseconds (>= 0)."""
    if value_us < 16:
        return value_us
    exponent = 63 - leading_zeros(value_us)
    return 16 + (exponent - 4) * 16 + ((value_us >> (exponent - _SUB_BITS)) & 15)


def histogram_quantile(histogram: I64, q: float, max_us: float) -> float:
    """The q-quantile in microseconds, 0.0 for an empty histogram: of n delays the one of rank ceil(q n), counting from 1.

    max_us: the longest delay; a longer one of other histograms is allowed. The delay of rank n is `max_us` itself, if that is
    in its bucket; any other delay is taken for the middle of its bucket, but for `max_us` at most.
    """
    total = int(histogram.sum())
    if total == 0:
        return 0.0
    rank = max(1, int(np.ceil(q * total)))
    index = int(np.searchsorted(np.cumsum(histogram), rank))
    low, width = index, 1
    if index >= 16:
        exponent, sub = divmod(index - 16, 16)
        low, width = (16 + sub) << exponent, 1 << exponent
    if rank >= total and low <= max_us < low + width:
        return float(max_us)
    return min(low + (width - 1) / 2, max_us)


@kernel(inline="always")
def record_delay(now, arrival, matches, stats, histogram):  # type: ignore[no-untyped-def]
    """Count `matches` pairs produced at `now` whose later tuple arrived at `arrival` (microseconds)."""
    if matches > 0:
        delay = max(now - arrival, 0)
        histogram[histogram_index(delay)] += matches
        stats[STAT_DELAY_SUM] += delay * matches
        stats[STAT_DELAY_MAX] = max(stats[STAT_DELAY_MAX], delay)


@kernel
def record_delays(now, arrivals, stats, histogram):  # type: ignore[no-untyped-def]
    """Count rows produced at `now` that arrived at these times, int64 (n,), microseconds."""
    first = 0  # of those with the same time, as rows that are read together have
    for i in range(1, arrivals.shape[0] + 1):
        if i == arrivals.shape[0] or arrivals[i] != arrivals[first]:
            record_delay(now, arrivals[first], i - first, stats, histogram)
            first = i
