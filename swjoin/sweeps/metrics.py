"""The metrics of a sweep's table: names, units and definitions.

What: `METRICS`, name -> `Metric(unit, over, meaning)`; `is_metric(name)`, which also accepts `sustainable_<axis key>`;
BELOW and AT_LEAST, marks of the latter; `t_quantile`, for confidence intervals.
Why: an experiment names metrics, queries compute them and plots draw them; one table defines them.
Stays out: computing them (`sweeps.run_metrics`), drawing.

Terms. A *row* is one slave's line in metrics/slaves.parquet for one distribution epoch. Rows of the measured phase count:
from_s < epoch_end <= to_s of run.json's "measured" (to_s null: to the last row; no "measured": all rows, from 0 to the last).
*Measured seconds* is the length of that interval. Metrics are computed per slave, then over the slaves with such rows: min,
mean, max, sum. "Per row" sums and means give every row the same weight, "weighted by pairs" the number of its pairs.

`sustainable_<axis key>` is the result of a search: the highest sustained value. When the lower end of the search's range is not
sustained, the value is that end, marked BELOW; when the upper end is, it is that end, marked AT_LEAST.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

RUN = ("run",)
SPREAD = ("min", "mean", "max")
SPREAD_AND_SUM = (*SPREAD, "sum")
SUM = ("sum",)
SUSTAINABLE = "sustainable_"
BELOW, AT_LEAST = "below", "at least"


@dataclass(frozen=True)
class Metric:
    """unit: of the stored number; "" for a ratio. over: aggregates over the slaves; "run": one number per run."""

    unit: str
    over: tuple[str, ...]
    meaning: str


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "delay_mean_s": Metric("s", RUN, "production delay: mean over all pairs of the measured phase"),
        "delay_p50_s": Metric(
            "s",
            RUN,
            "lowest delay_mean of a row such that rows up to it have 50 % of the pairs: a percentile over rows, not over pairs",
        ),
        "delay_p95_s": Metric("s", RUN, "the same with 95 %"),
        "delay_p99_s": Metric(
            "s", RUN, "lowest delay_p99 of a row (over its pairs, by histogram) such that rows up to it have 99 % of the pairs"
        ),
        "delay_max_s": Metric("s", RUN, "highest production delay of a pair"),
        "delay_growth": Metric(
            "s/s", RUN, "slope of the least-squares line through (epoch_end, delay_mean) of the rows, weighted by pairs"
        ),
        "delay_last_third_s": Metric("s", RUN, "delay_mean over the pairs of rows in the last third of the measured interval"),
        "busy_ratio": Metric("", SPREAD, "time inside the join module / measured seconds"),
        "cpu_s": Metric(
            "s/min", SPREAD_AND_SUM, "time inside the join module per minute measured: CPU time of the imitated node"
        ),
        "work_s": Metric("s/min", SPREAD_AND_SUM, "CPU time that the slave's process really used, per minute measured"),
        "idle_ratio": Metric("", SPREAD, "time waiting for the master / measured seconds"),
        "communication_s": Metric(
            "s/min",
            SPREAD_AND_SUM,
            "communication overhead: from a slave's report to the arrival of its delivery (its turn in the fixed order, and "
            "the transfer), per minute measured; null where the run did not measure it",
        ),
        "transfer_s": Metric("s/min", SPREAD_AND_SUM, "time inside sends and receives, per minute measured"),
        "occupancy_mean": Metric("", SPREAD, "stream buffer: mean over the slave's rows of the occupancy at each delivery"),
        "occupancy_max": Metric("", SPREAD, "stream buffer: highest occupancy at a delivery"),
        "window_bytes": Metric("bytes", SPREAD_AND_SUM, "highest size of the slave's window state at the end of an epoch"),
        "window_tuples": Metric("tuples", SPREAD_AND_SUM, "most tuples in the slave's windows at the end of an epoch"),
        "delivered_bytes_per_s": Metric("bytes/s", SUM, "bytes delivered to slaves / measured seconds"),
        "comparisons_per_s": Metric("comparisons/s", SUM, "comparisons of tags / measured seconds"),
        "pairs_per_s": Metric("pairs/s", RUN, "pairs produced / measured seconds"),
        "joined_tuples_per_s": Metric("tuples/s", RUN, "tuples of both streams joined / measured seconds"),
        "active_slaves": Metric(
            "slaves", RUN, "degree of declustering, mean over the time of the measured phase; null where it is not known"
        ),
        "moves": Metric("moves", RUN, "partition-groups moved in the whole run"),
        "mini_group_count": Metric(
            "mini-partition-groups", SUM, "the slave's, summed over its rows / distribution epochs counted"
        ),
        "block_count": Metric("blocks", SUM, "the same of blocks"),
        "input_tuples_per_s": Metric("tuples/s", RUN, "run.json: tuples of both streams / join_s, over the whole run"),
        "join_s": Metric("s", RUN, "run.json: from the first read to the end"),
        "peak_rss_bytes": Metric("bytes", ("max",), "run.json: highest resident memory of the largest rank"),
        "results_count": Metric("pairs", RUN, "run.json: pairs of the run, without those of prefill"),
        "utilisation_slaves": Metric("", SPREAD, "simulated: busy share of the time, over the slaves"),
        "utilisation_master": Metric("", RUN, "simulated: busy share of the master, CPU and link together"),
        "utilisation_collector": Metric("", RUN, "simulated: busy share of the collector"),
        "saturation_tuples_per_s": Metric(
            "tuples/s", RUN, "simulated query: highest rate of all sources together that is sustained, with as many more keys"
        ),
        "saturation_per_node": Metric("tuples/s", RUN, "the same / slaves of the point"),
        "gateway_count": Metric("gateways", RUN, "run.json: gateways"),
        "operator_ratio": Metric(
            "",
            RUN,
            "of a query, share of the time of all slave ranks that goes into operators: sum of process_us over the rows / "
            "ranks and measured seconds; with what slow nodes sleep. Simulated: of slaves and gateways, in steady state",
        ),
        "exchange_ratio": Metric(
            "", RUN, "the same of communication: sum of communication_us; simulated: packing, links, messages"
        ),
        "waiting_ratio": Metric("", RUN, "the same of idle time: sum of idle_us; simulated: what the other two leave"),
        "late_s_master_p99": Metric("s", RUN, "how late the master woke for its slots, 99th percentile"),
    }
)

_T95 = (  # two-sided 95 % quantiles of Student's t, degrees of freedom 1 to 30
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
    *(2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272),
)


def t_quantile(freedom: int) -> float:
    """Half the width of a 95 % confidence interval, in standard errors; beyond 30 degrees of freedom by the normal."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.959964


def is_metric(name: str) -> bool:
    """Whether a sweep's table can have this metric: a name of METRICS, or sustainable_<axis key> of a search."""
    return name in METRICS or (name.startswith(SUSTAINABLE) and len(name) > len(SUSTAINABLE))
