"""The ledger of a plan's edges: rows and digests that a role has sent and received.

What: `EdgeLedger`.
Why: a run's answer is right only if what every edge's senders have sent is what its receivers have taken.
Stays out: balancing the ledgers of all roles (`runtime.plan_counts`, `runtime.simulator.checkers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from swjoin.core.batch import I64, TupleBatch

Entry = list[int]  # rows, sum of their ids mod 2^64, bytes


def _entries() -> defaultdict[int, Entry]:
    return defaultdict(lambda: [0, 0, 0])


class EdgeLedger:
    """sent, received: by edge, [rows, digest, bytes]. null_keys, filtered: by edge, rows that the sender drops, as they match
    nothing, and by the edge's filters, less those that its lookups add, and less copies: it may be negative. from_other_ranks:
    by edge between stages, of the bytes received, those of senders on other ranks."""

    def __init__(self) -> None:
        self.sent, self.received = _entries(), _entries()
        self.null_keys: defaultdict[int, int] = defaultdict(int)
        self.filtered: defaultdict[int, int] = defaultdict(int)
        self.from_other_ranks: defaultdict[int, int] = defaultdict(int)

    def received_rows(self) -> I64:
        """Edge, rows and bytes that were received, and bytes from other ranks: int64 (edges, 4)."""
        rows = [(edge, rows, nbytes, self.from_other_ranks[edge]) for edge, (rows, _, nbytes) in self.received.items()]
        return np.array(rows, np.int64).reshape(-1, 4)

    def to_plain(self) -> dict[str, dict[str, list[int]]]:
        """Ready for JSON."""
        dropped = {"null_keys": self.null_keys, "filtered": self.filtered}
        entries = {"sent": self.sent, "received": self.received}
        return {what: {str(e): list(entry) for e, entry in by.items()} for what, by in entries.items()} | {
            what: {str(edge): [count] for edge, count in by.items() if count} for what, by in dropped.items()
        }


def summed(ledgers: Iterable[Mapping[str, Mapping[str, Sequence[int]]]]) -> dict[str, dict[str, list[int]]]:
    """The sum of ledgers, each as by `EdgeLedger.to_plain`."""
    total: dict[str, dict[str, list[int]]] = {"sent": {}, "received": {}, "null_keys": {}, "filtered": {}}
    for ledger in ledgers:
        for side, by in ledger.items():
            for edge, entry in by.items():
                found = total[side].setdefault(edge, [0] * len(entry))
                for i, value in enumerate(entry):
                    found[i] += value
                if len(found) > 1:
                    found[1] &= (1 << 64) - 1
    return total


def count(ledger: defaultdict[int, Entry], edge: int, *batches: TupleBatch) -> None:
    """Add tuples of an edge to one side of a ledger."""
    entry = ledger[edge]
    for batch in batches:
        entry[0] += len(batch)
        entry[1] = (entry[1] + int(np.add.reduce(batch.id, dtype=np.uint64))) & (1 << 64) - 1
        entry[2] += batch.nbytes
