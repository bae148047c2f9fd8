"""The operator that an instance of a plan's stage runs.

What: `operator_of`.
Why: a new operator is named here, and nowhere else in the roles.
Stays out: the operators (`operators`), what an instance has around its own (`cluster.slave.stage`).
"""

from __future__ import annotations

from swjoin.cluster.slave.stage import StageInstance
from swjoin.config.run import RunConfig
from swjoin.core.aggregate_columns import AggregateColumns
from swjoin.core.counted_columns import CountedColumns
from swjoin.core.group_keys import GroupKeys
from swjoin.core.kept_columns import RankColumns, RepeatedColumns, SessionColumns
from swjoin.core.life_columns import LifeColumns
from swjoin.core.multiway_columns import MultiwayColumns
from swjoin.operators.aggregation import Aggregation
from swjoin.operators.configured_join import join_of_run
from swjoin.operators.counted_join import CountedJoin, CountedParts
from swjoin.operators.gathering import Gathering
from swjoin.operators.group_windows import AlignedWindows, TupleWindows, Views
from swjoin.operators.join_operator import JoinOperator
from swjoin.operators.keyed_operator import Limits
from swjoin.operators.live_groups import LiveGroups, Rule
from swjoin.operators.multiway_join import MultiwayJoin
from swjoin.operators.ranking import Ranking
from swjoin.operators.running_aggregation import RunningAggregation
from swjoin.operators.sessions import Sessions
from swjoin.operators.window_join import Matching, WindowJoinOperator
from swjoin.plan import aggregates, counted_joins, kept_rows, live_groups, multiway
from swjoin.state.life_kernel import BIRTHS, BOUNDARIES, CHANGES


def operator_of(stage: StageInstance, config: RunConfig, name: str, *, rows: bool) -> JoinOperator:
    """name: of the slave, for messages. rows: whether pairs of a join have columns. UserError when the types of a predicate do
    not fit."""
    node, columns, keys, module = stage.stage.node, stage.columns.keyed, stage.keys, config.module
    limits = Limits(module.result_buffer_bytes, module.window_bytes)
    if stage.stage.gathers:
        return Gathering(module.result_buffer_bytes, name)
    if stage.stage.joins:
        where = stage.columns.compiled_where()
        matching = Matching(where, stage.stage.join.band)
        join = join_of_run(config, stage.layouts, name=name, matching=matching, in_order=False, rows=rows)
        if isinstance(join, WindowJoinOperator) and stage.outlet.edges:
            join.keep_origins()  # for the traffic to the next stages
        return join
    assert isinstance(keys, GroupKeys), f"{name}: groups with the keys of a join"
    if isinstance(node, multiway.MultiwayJoin) and isinstance(columns, MultiwayColumns):
        return MultiwayJoin(node.bounds, columns, keys, limits, name)
    if isinstance(node, aggregates.Aggregate) and isinstance(columns, AggregateColumns):
        kind = RunningAggregation if node.running else Aggregation
        return kind(node.windows, columns, keys, limits, name)
    if isinstance(node, kept_rows.Ranked) and isinstance(columns, RankColumns):
        return Ranking(node.windows, columns, keys, limits, name)
    if isinstance(node, kept_rows.TupleWindows) and isinstance(columns, RepeatedColumns):
        return TupleWindows((node.size, node.slide), columns, keys, limits, name, partial=node.partial)
    if isinstance(node, kept_rows.AlignedWindows) and isinstance(columns, RepeatedColumns):
        at_start = node.output_time == "start"
        return AlignedWindows((node.size_us, node.slide_us), columns, keys, limits, name, at_start=at_start)
    if isinstance(node, kept_rows.Views) and isinstance(columns, RepeatedColumns):
        return Views(node.every_us, columns, keys, limits, name)
    if isinstance(node, live_groups.LiveGroups) and isinstance(columns, LifeColumns):
        mode = {"changes": CHANGES, "boundaries": BOUNDARIES, "births": BIRTHS}[node.mode]
        return LiveGroups(Rule(mode, node.every_us, node.longest_us), columns, keys, limits, name)
    if isinstance(node, counted_joins.CountedJoin) and isinstance(columns, CountedColumns):
        names = tuple(tuple(name for name in node.shared if name in mine) for mine in node.columns)
        return CountedJoin(CountedParts(names, node.streams, node.counts, node.widths), columns, limits, name)
    assert isinstance(node, kept_rows.Sessions), f"{name}: a stage without an operator"
    assert isinstance(columns, SessionColumns), f"{name}: sessions without their columns"
    return Sessions(node.gap_us, columns, keys, limits, name)
