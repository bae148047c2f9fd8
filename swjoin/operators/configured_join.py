"""The join that a run's configuration describes.

What: `join_of_run`: a window join, or an as-of join.
Why: slaves, stages of plans and the join in this process make the same choice.
Stays out: the joins (`operators.window_join`, `operators.as_of_join`), other operators of plans
(`cluster.slave.operator_of_stage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from swjoin.operators.as_of_join import AsOfJoin
from swjoin.operators.join_step import PAIR_BYTES
from swjoin.operators.rows_by_time import Layouts
from swjoin.operators.window_join import Matching, WindowJoinOperator
from swjoin.operators.window_store import WindowSizes

if TYPE_CHECKING:
    from swjoin.config.run import RunConfig

Join: TypeAlias = WindowJoinOperator | AsOfJoin


def join_of_run(
    config: RunConfig,
    layouts: Layouts,
    *,
    name: str,
    matching: Matching | None = None,
    ids_alone: bool = False,
    result_bytes: int = 0,
    in_order: bool = True,
    rows: bool | None = None,
) -> Join:
    """layouts: as they travel (`wire_layouts`). result_bytes: most bytes of fixed size per step; 0: `module.result_buffer`.
    in_order: see `WindowSizes`. rows: emit rows; None: unless the sink counts."""
    module, query, matching = config.module, config.query, matching or Matching()
    wanted = rows or (rows is None and config.sink.kind != "count")
    pair_bytes = PAIR_BYTES + sum(layout.fixed_bytes for layout in layouts if layout is not None)
    result_tuples = max(1, (result_bytes or module.result_buffer_bytes) // pair_bytes) if wanted else 0
    if query.as_of is not None:
        assert matching.band is None, f"{name}: an as-of join with a band"
        return AsOfJoin(
            query.as_of,
            layouts,
            result_tuples=result_tuples,
            kind=query.kind,
            window_bytes=module.window_bytes,
            where=matching.where,
            ids_alone=ids_alone,
            name=name,
        )
    return WindowJoinOperator(
        query.bounds,
        WindowSizes(module.block_tuples, module.theta_tuples, module.window_bytes, in_order),
        layouts,
        result_tuples=result_tuples,
        kind=query.kind,
        matching=matching,
        ids_alone=ids_alone,
        name=name,
    )
