"""Ledger of rows: read, joined, null, late and shed, per stream, and pairs.

What: `StreamCounts`, `Ledger`, `PlanLedger`, `Proof`.
Why: every run carries its ledger, and a run whose ledger does not balance fails.
Stays out: counting (`cluster.gateway.intake`, `cluster.collector`), the report (`runtime.run_report`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swjoin.core.batch import I64


@dataclass
class StreamCounts:
    """One stream's side of the ledger (SPEC section 1): input = joined + null_key + late + shed.

    earliest_us, latest_us: time range of all rows read that have a time, late rows and rows with a null key included; None when
    no row has one.
    """

    tuples: int = 0
    joined: int = 0
    null_key: int = 0
    late: int = 0
    shed: int = 0
    earliest_us: int | None = None
    latest_us: int | None = None

    def extend_range(self, ts: I64) -> None:
        """Extend the time range by these times."""
        if len(ts):
            low, high = int(ts.min()), int(ts.max())
            self.earliest_us = low if self.earliest_us is None else min(self.earliest_us, low)
            self.latest_us = high if self.latest_us is None else max(self.latest_us, high)

    def add(self, other: StreamCounts) -> None:
        """Add the counts of other rows of the same stream."""
        for name in ("tuples", "joined", "null_key", "late", "shed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for time_us in (other.earliest_us, other.latest_us):
            if time_us is not None:
                self.earliest_us = time_us if self.earliest_us is None else min(self.earliest_us, time_us)
                self.latest_us = time_us if self.latest_us is None else max(self.latest_us, time_us)

    def missing(self) -> int:
        return self.tuples - self.joined - self.null_key - self.late - self.shed


@dataclass
class Ledger:
    """Input and output of one query; balanced when no row is missing."""

    left: StreamCounts = field(default_factory=StreamCounts)
    right: StreamCounts = field(default_factory=StreamCounts)
    produced: int = 0
    collected: int = 0

    def complaints(self) -> list[str]:
        """One line per imbalance; empty when the ledger balances."""
        lines = [
            f"{name}: {counts.missing():+d} of {counts.tuples} input tuples are not accounted for"
            for name, counts in (("left", self.left), ("right", self.right))
            if counts.missing()
        ]
        if self.produced != self.collected:
            lines.append(f"results: slaves produced {self.produced}, the collector collected {self.collected}")
        return lines

    @property
    def balanced(self) -> bool:
        return not self.complaints()


@dataclass
class PlanLedger(Ledger):
    """Input and output of a query in SQL, which has no left and right. sources: its tables by name. edges: between them and the
    stages, as in run.json: `sent` and `received` are rows and the sum of their ids."""

    sources: dict[str, StreamCounts] = field(default_factory=dict)
    edges: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(plain: Mapping[str, Any], count: int) -> PlanLedger:
        """plain: `input`, `late`, `stages`, `edges` and `queries` of a run.json, and `collected` where the answer's rows are
        others than the plan's. count: rows that the sinks have."""
        sources = {}
        for name, counts in plain["input"].items():
            late = plain["late"][name]
            ends = counts.get("earliest_us"), counts.get("latest_us")
            sources[name] = StreamCounts(counts["tuples"], counts["tuples"] - late, 0, late, 0, *ends)
        last = plain["stages"][-1]
        produced = last["produced"] - last["filtered"]
        if queries := plain.get("queries"):
            produced = sum(query["produced"] for query in queries)
        sums = {"produced": produced, "collected": plain.get("collected", count)}
        return PlanLedger(**sums, sources=sources, edges=list(plain["edges"]))

    def complaints(self) -> list[str]:
        """One line per imbalance; empty when the ledger balances."""
        lines = []
        for edge in self.edges:
            if edge["sent"] != edge["received"]:
                lines.append(f"edge {edge['edge']}: {edge['sent']} sent, {edge['received']} received")
            gave = self.sources.get(edge["from"])
            sent = edge["sent"]["rows"] + edge["null_key"] + edge["filtered"]
            if gave is not None and gave.joined != sent:
                lines.append(f"edge {edge['edge']}: {edge['from']} gave {gave.joined} rows, {sent} were sent or dropped")
        if self.produced != self.collected:
            lines.append(f"results: slaves produced {self.produced}, the collector collected {self.collected}")
        return lines


@dataclass(frozen=True)
class Proof:
    """Identity of a result, and its ledger. digest: 16 hex digits, see docs/semantics.md; of a query's rows, docs/queries.md.

    warnings: reasons why the result is implausible, a line each.
    """

    count: int
    digest: str
    ledger: Ledger = field(repr=False)
    warnings: tuple[str, ...] = field(default=(), repr=False, compare=False)
