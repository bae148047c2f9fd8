"""Network forecast: bytes per second between ranks, from rates, widths and the expected pairs. No I/O.

What: `plan_network(config, slaves, profile, rates_per_s, pairs_per_s) -> NetworkEstimate`.
Why: gateways send every tuple to one slave, and pairs with payload go to the sinks: either links may be the limit.
Stays out: the input (`forecast.input_profile`), the number of pairs (`forecast.capacity`), state movement, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT
from swjoin.forecast.input_profile import InputProfile
from swjoin.forecast.memory import epoch_length_us
from swjoin.forecast.model.batch import TUPLE_BYTES
from swjoin.operators.join_step import PAIR_BYTES
from swjoin.policy.placement import round_robin

_MESSAGE_BYTES = 1024  # header of any message
_GROUP_BYTES = 24  # of each partition-group in a delivery or a chunk of results
_CHUNK_BYTES = 9_000  # a chunk of results without pairs: mostly the histogram of delays
_SEQUENCE_BYTES = 16  # sequence numbers of a tuple, with count windows


@dataclass(frozen=True)
class NetworkEstimate:
    """Bytes per second of the streams' time.

    to_slaves: all gateways to each active slave. to_master: reports of all slaves to gateways. to_collector: results of all
    slaves.
    tuple_bytes: of a left and of a right tuple in a delivery. pair_bytes: of a pair; 0 where pairs are only counted.
    pairs_per_s: expected pairs.
    """

    to_slaves: tuple[float, ...]
    to_master: float
    to_collector: float
    tuple_bytes: tuple[float, float]
    pair_bytes: float
    pairs_per_s: float

    def to_plain(self) -> dict[str, Any]:
        """Ready for JSON: whole bytes per second."""
        return {
            "master_to_slaves_bytes_per_s": round(sum(self.to_slaves)),
            "master_to_each_slave_bytes_per_s": [round(b) for b in self.to_slaves],
            "slaves_to_master_bytes_per_s": round(self.to_master),
            "slaves_to_collector_bytes_per_s": round(self.to_collector),
            "tuple_bytes": {"left": round(self.tuple_bytes[LEFT]), "right": round(self.tuple_bytes[RIGHT])},
            "pair_bytes": round(self.pair_bytes),
            "pairs_per_s": self.pairs_per_s,
        }


def plan_network(
    config: RunConfig, slave_count: int, profile: InputProfile, rates_per_s: tuple[float, float], pairs_per_s: float
) -> NetworkEstimate:
    """The traffic at these rates, with full windows and the initial placement."""
    active = config.reorganization.active_slaves or slave_count
    groups = config.cluster.partition_count
    payload = [f + t for f, t in zip(profile.fixed_bytes, profile.tail_bytes, strict=True)]
    if config.query.kind.one_sided and config.query.where is None:
        payload[RIGHT] = 0.0  # of which no column is put out
    head = TUPLE_BYTES + (0 if config.query.last is None else _SEQUENCE_BYTES)
    sizes = (head + payload[LEFT], head + payload[RIGHT])
    cells = profile.keys.cells(groups, 0, 0.0, max(1.0, float(config.query.bounds.retention_us)))
    owner = round_robin(groups, active)
    bytes_of_group = (
        cells.left.sum(1) * rates_per_s[LEFT] * sizes[LEFT] + cells.right.sum(1) * rates_per_s[RIGHT] * sizes[RIGHT]
    )
    owned = np.bincount(owner, minlength=active)
    epochs_per_s = 1e6 / max(1.0, epoch_length_us(config, profile))
    deliveries_per_s = epochs_per_s * config.gateway_count
    each = np.bincount(owner, bytes_of_group, active) + deliveries_per_s * (_MESSAGE_BYTES + _GROUP_BYTES * owned)
    pair = 0.0 if config.sink.kind == "count" else PAIR_BYTES + sum(payload)
    results = pair * pairs_per_s + epochs_per_s * (active * _CHUNK_BYTES + _GROUP_BYTES * groups)
    reports = deliveries_per_s * active * _MESSAGE_BYTES
    return NetworkEstimate(tuple(each.tolist()), reports, results, sizes, pair, pairs_per_s)
