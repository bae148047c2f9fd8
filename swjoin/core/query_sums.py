"""Counts and digests of rows by query.

What: `QuerySums`; `NamedQueries`, which of the run's queries share rows.
Why: an instance counts what it sends, a sink what arrives; with thousands of queries both are arrays, not a dictionary each.
Stays out: who compares them (`cluster.collector`), the digest of a row (`core.hashing`, `core.row_digests`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swjoin.core.batch import I64, U64, Pairs, ResultRows
from swjoin.core.hashing import digest_results


class QuerySums:
    """counts: int64 (queries,); digests: uint64 (queries,), mod 2^64. Rows with ranks are those of the query that is the first
    to have them (`plan.families`)."""

    def __init__(self, queries: int) -> None:
        self.counts: I64 = np.zeros(max(1, queries), np.int64)
        self.digests: U64 = np.zeros(max(1, queries), np.uint64)

    def __len__(self) -> int:
        return len(self.counts)

    @staticmethod
    def of_table(table: U64, queries: int) -> QuerySums:
        """What `to_table` made. ValueError for a query that there is not."""
        sums = QuerySums(queries)
        numbers = table[:, 0].astype(np.int64)
        if len(numbers) and (int(numbers.max()) >= len(sums) or int(numbers.min()) < 0):
            raise ValueError(f"query {int(numbers.max())} of {len(sums)}")
        sums.counts[numbers], sums.digests[numbers] = table[:, 1].astype(np.int64), table[:, 2]
        return sums

    def to_table(self) -> U64:
        """Query, count and digest of those that have rows: uint64 (n, 3)."""
        numbers = np.flatnonzero((self.counts != 0) | (self.digests != 0))
        columns = numbers.astype(np.uint64), self.counts[numbers].astype(np.uint64), self.digests[numbers]
        return np.stack(columns, axis=1)

    def add(self, other: QuerySums) -> None:
        """Add other rows of the same queries."""
        self.counts += other.counts
        self.digests += other.digests

    def differing(self, other: QuerySums) -> int | None:
        """The first query of which the other has another count or digest."""
        found = np.flatnonzero((self.counts != other.counts) | (self.digests != other.digests))
        return int(found[0]) if len(found) else None

    def of_families(self, families: Sequence[I64]) -> QuerySums:
        """With all rows that each query has, of these families too."""
        sums = QuerySums(len(self))
        sums.add(self)
        for family in families:
            sums.counts[family] = np.cumsum(self.counts[family])
            sums.digests[family] = np.cumsum(self.digests[family], dtype=np.uint64)
        return sums

    def by_first(self, families: Sequence[I64]) -> QuerySums:
        """Of sums with all rows that each query has: of the rows that each is the first of its family to have."""
        sums = QuerySums(len(self))
        sums.add(self)
        for family in families:
            sums.counts[family[1:]] -= self.counts[family[:-1]]
            sums.digests[family[1:]] -= self.digests[family[:-1]]
        return sums

    @property
    def total(self) -> tuple[int, int]:
        """Count and digest of all rows."""
        return int(self.counts.sum()), int(np.add.reduce(self.digests, dtype=np.uint64))


class NamedQueries:
    """count: of the queries that have names. by_first: families of those that share rows, int64, by their first queries, from
    the narrowest windows to the widest (`plan.families`)."""

    def __init__(self, count: int, families: Sequence[Sequence[int]] = ()) -> None:
        self.count = count
        self.by_first = {family[0]: np.array(family, np.int64) for family in families}
        self._sharers = np.ones(max(1, count), np.int64)  # queries that have a row which this one is the first to have
        for family in self.by_first.values():
            self._sharers[family] = np.arange(len(family), 0, -1)

    def add(self, sums: QuerySums, rows: Pairs | ResultRows, query: int) -> int:
        """Add rows to sums; returns how many results they are, in which a shared row is several times. query: whose rows they
        are, or the first one of their family. ValueError for ranks that rows of this query cannot have."""
        ranks, family = rows.ranks if isinstance(rows, ResultRows) else None, self.by_first.get(query)
        if (ranks is None) != (family is None):
            raise ValueError("rows with ranks of no family, or without")
        if not isinstance(rows, ResultRows) or ranks is None or family is None:  # without an array of all queries
            sums.counts[query] += len(rows)
            sums.digests[query : query + 1] += np.uint64(digest_results(rows))  # modulo 2^64, as arrays are
            return len(rows)
        if int(ranks.max(initial=-1)) >= len(family):
            raise ValueError(f"rank {int(ranks.max())} of {len(family)}")
        found, first = QuerySums(self.count), family[ranks]
        found.counts += np.bincount(first, minlength=len(found))
        np.add.at(found.digests, first, rows.id)
        sums.add(found)
        return self.total(found)[0]

    def total(self, sums: QuerySums) -> tuple[int, int]:
        """Count and digest of the results of all queries, in which a shared row is several times."""
        digest = np.add.reduce(sums.digests * self._sharers.view(np.uint64), dtype=np.uint64)
        return int(sums.counts @ self._sharers), int(digest)

    def of_each(self, sums: QuerySums | None) -> list[tuple[int, int]]:
        """Count and digest of each query's result."""
        if not self.count:
            return []
        whole = (sums or QuerySums(self.count)).of_families(list(self.by_first.values()))
        return list(zip(whole.counts.tolist(), whole.digests.tolist(), strict=True))
