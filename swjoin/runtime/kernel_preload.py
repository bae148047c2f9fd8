"""A rank calls its own kernels once before the run's clock starts.

What: `load_gateway_kernels`, `load_slave_kernels`; both log a line when a kernel has to be compiled (`report_compilations`).
Why: loading compiled kernels from the cache takes most of a second, which must not become production delay of the first
distribution epochs.
Stays out: compiling them in the first place (`cli.kernels`), measuring.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numba.core.event import Event, Listener, install_listener

from swjoin.cluster.gateway.feeds import Feeds
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import EpochPlan
from swjoin.cluster.role import (
    GATEWAY,
    MASTER,
    BatchRead,
    Received,
    Role,
    RoleId,
    SourceEnded,
    WorkDue,
    slave_role,
)
from swjoin.cluster.slave.results import receipts
from swjoin.cluster.slave.slave import Slave
from swjoin.cluster.wire import pack_delivery, unpack_delivery
from swjoin.config.run import (
    MeasureConfig,
    NodesConfig,
    OverloadConfig,
    PlacementConfig,
    ReorganizationConfig,
    RunConfig,
    TimeConfig,
)
from swjoin.core.batch import LEFT, PayloadRows, RowLayout, SourceBatch, TupleBatch
from swjoin.core.columns import Columns, type_named
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, QueryId, SlaveId
from swjoin.core.kernel_cache import stored_kernels
from swjoin.core.pair_columns import rebuilt
from swjoin.core.row_codec import storage
from swjoin.core.sequence_numbers import wire_layouts
from swjoin.plan.columns import BoundStep, TableRows
from swjoin.plan.logical import LogicalPlan, Source
from swjoin.plan.lookups import Lookup
from swjoin.plan.map_batches import MapBatches
from swjoin.policy.placement import suggest
from swjoin.policy.task_graph import Machines, TaskGraph
from swjoin.routing.hot_keys import HotKey
from swjoin.runtime.host import settled
from swjoin.state.payload_store import PAGE_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.expressions.batch_map import BatchMap

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 1.0


class _Compiled(Listener):  # type: ignore[misc]
    """Counts compilations, not loads from the cache; after a second of compiling it logs a line."""

    def __init__(self, on_compile: Callable[[int], object] | None) -> None:
        self.count = 0
        self._on_compile = on_compile
        self.start = time.monotonic()
        self._reported = False

    def on_start(self, event: Event) -> None:
        self.count += 1
        if self._on_compile is not None:
            self._on_compile(self.count)
        if not self._reported and time.monotonic() - self.start > _PATIENCE_S:
            self._reported = True
            _LOG.info("compiling kernels for this machine, once after an installation")

    def on_end(self, event: Event) -> None:
        pass


@contextlib.contextmanager
def report_compilations(on_compile: Callable[[int], object] | None = None) -> Iterator[None]:
    """Log one line if kernels were compiled inside, as happens once after an installation or a change.

    on_compile: called with the number of each kernel, by the thread that compiles it.
    """
    compiled = _Compiled(on_compile)
    with install_listener("numba:compile", compiled):
        yield
    if compiled.count:
        seconds = time.monotonic() - compiled.start
        later = "later runs load them" if stored_kernels() else "they cannot be kept; swjoin doctor says why"
        _LOG.info("compiled %d kernels in %.0f s; %s", compiled.count, seconds, later)


def _two_rows(layout: RowLayout | None) -> PayloadRows | None:
    if layout is None:
        return None
    offsets, var = (np.zeros(3, np.int64), np.empty(0, np.uint8)) if layout.has_var else (None, None)
    return PayloadRows(np.zeros((2, layout.fixed_bytes), np.uint8), offsets, var)


def _alone(config: RunConfig) -> RunConfig:
    """The same run with one gateway and one slave, without moves, prefill, slow nodes and overload policy."""
    cluster = dataclasses.replace(config.cluster, sub_group_count=1, gateways=1)
    return dataclasses.replace(
        config,
        cluster=cluster,
        reorganization=ReorganizationConfig(),
        nodes=NodesConfig(),
        measure=MeasureConfig(),
        on_overload=OverloadConfig(),
    )


def load_gateway_kernels(
    config: RunConfig,
    layouts: tuple[RowLayout | None, RowLayout | None],
    on_compile: Callable[[int], object] | None = None,
) -> None:
    """Classify, sort and partition two tuples per stream."""
    with report_compilations(on_compile):
        relaxed = dataclasses.replace(_alone(config), time=TimeConfig("event", 1_000_000, "drop"), pace="asap")
        gateway = Gateway(relaxed, 1, layouts)
        gateway.start()
        for stream, layout in enumerate(layouts):
            two = np.arange(2, dtype=np.int64)
            gateway.handle(BatchRead(stream, SourceBatch(two, two, two.astype(np.uint64), None, None, _two_rows(layout))), 0)
            gateway.handle(SourceEnded(stream), 0)
        gateway.handle(Received(MASTER, EpochPlan(0, (0,), everything=True, last=True)), 0)


def load_slave_kernels(
    config: RunConfig,
    layouts: tuple[RowLayout | None, RowLayout | None],
    on_compile: Callable[[int], object] | None = None,
) -> None:
    """Join two tuples of each stream, with the payload layouts of the run."""
    with report_compilations(on_compile):
        pages = 2 * PAGE_ROWS * sum(layout.fixed_bytes for layout in layouts if layout is not None)
        module = dataclasses.replace(config.module, window_bytes=(1 << 20) + pages)
        alone, in_order = dataclasses.replace(_alone(config), module=module), config.gateway_count == 1
        slave = Slave(SlaveId(0), alone, layouts, in_order=in_order)
        batches = []
        for layout in wire_layouts(layouts, count_windows=config.query.bounds.count_windows):
            two = np.zeros(2, np.int64)
            batches.append(TupleBatch(two, two, two.astype(np.uint64), two, _two_rows(layout)))
        one, counts = np.zeros(1, np.int64), np.full(1, 2, np.int64)
        end = END_OF_TIME_US
        delivery = Delivery(QueryId(0), SlaveId(0), EpochIndex(0), end, end, one, counts, counts, batches[0], batches[1], True)
        slave.handle(Received(GATEWAY, unpack_delivery(pack_delivery(delivery))), 0)
        while slave.has_work:
            slave.handle(WorkDue(), 0)


def load_plan_kernels(instances: Instances, on_compile: Callable[[int], object] | None = None) -> None:
    """Run a plan over two rows of every source, with one instance of each stage."""
    with report_compilations(on_compile):
        if instances.config.reorganization.policy == "network":
            _place_some()  # while the run goes on, the master has no time to compile
        config = _alone(instances.config)
        relaxed = dataclasses.replace(config, time=TimeConfig("event", 1_000_000, "drop"), pace="asap")
        small = instances.at(relaxed, 1)
        if any(isinstance(node, Lookup) for node in instances.logical.nodes):  # whose tables are not read yet
            small = Instances.of(instances.logical, relaxed, 1, tables=partial(_table_row, instances.logical))
        if any(isinstance(node, MapBatches) for node in instances.logical.nodes):
            small = _without_functions(small)
        count = small.slave_count
        gateway = Gateway(small.config_of_gateway, count, (None, None), feeds=Feeds(small))
        roles: dict[RoleId, Role] = {GATEWAY: gateway}
        roles |= {slave_role(s): Slave.of_plan(small, SlaveId(s)) for s in range(count)}
        hot_keys = tuple(HotKey(join.stage, 0, LEFT, (0,)) for join in small.skewed_joins)
        plan = EpochPlan(0, tuple(range(count)), everything=True, last=True, hot_keys=(hot_keys,) if hot_keys else ())
        events: list[BatchRead | SourceEnded] = []
        for stream, source in enumerate(small.stages.sources):
            events += [BatchRead(stream, _two_rows_of(source, small.columns.read[source.name])), SourceEnded(stream)]
        settled(roles, GATEWAY, gateway.start(), 0)
        for event in [*events, Received(MASTER, plan)]:
            settled(roles, GATEWAY, gateway.handle(event, 0), 0)
        while not all(role.finished for role in roles.values()):
            for name, role in roles.items():
                if isinstance(role, Slave) and role.has_work:
                    effects = settled(roles, name, role.handle(WorkDue(), 0), 0)
                    for receipt in receipts(role.results, effects):
                        role.handle(receipt, 0)


def _place_some() -> None:
    """More tasks than are placed by trying all ways, on two hosts of two machines."""
    count = 40
    tasks, nothing = np.arange(count), np.zeros(count, np.int64)
    graph = TaskGraph(tuple(range(count)), tasks + 1, nothing, nothing - 1, tasks, (tasks + 1) % count, tasks, tasks, nothing)
    machines = Machines.alike(4, np.array([0, 0, 1, 1]))
    suggest(graph, machines, PlacementConfig(horizon=1e9), 0, tasks % 4, busy=False)


def _without_functions(instances: Instances) -> Instances:
    """The same, but users' functions, which must see no rows but those of the run, are not called."""
    from swjoin.expressions.batch_map import BatchMap
    from swjoin.expressions.lookup import TableLookup

    def replaced(step: BoundStep) -> BoundStep:
        if isinstance(step, TableLookup) and isinstance(step.table, TableRows):
            ways = tuple((source, tuple(map(replaced, steps))) for source, steps in step.table.ways)
            return dataclasses.replace(step, table=dataclasses.replace(step.table, ways=ways))
        return partial(_mapped, step) if isinstance(step, BatchMap) else step

    steps = {edge: tuple(map(replaced, found)) for edge, found in instances.columns.steps.items()}
    return dataclasses.replace(instances, columns=dataclasses.replace(instances.columns, steps=steps))


def _mapped(step: BatchMap, rows: TupleBatch) -> TupleBatch:
    """Rows with the columns that a function would give."""
    import pyarrow as pa

    assert rows.columns is not None, "functions read columns"
    before, arrays = rows.columns, []
    for name, kind in step.columns:
        same = name in before.names and before.column(name).type == storage(kind)
        arrays.append(before.column(name) if same else _equal_values(len(rows), storage(kind)))
    return dataclasses.replace(rows, columns=Columns(pa.RecordBatch.from_arrays(arrays, [name for name, _ in step.columns])))


def _table_row(plan: LogicalPlan, name: str, columns: tuple[str, ...]) -> tuple[Columns | None, int]:
    """A row of a static table."""
    source = next(node for node in plan.nodes if isinstance(node, Source) and node.name == name)
    rows = _two_rows_of(source, columns)
    return (None if rows.columns is None else rows.columns.slice(0, 1)), 1


def _two_rows_of(source: Source, names: Sequence[str]) -> SourceBatch:
    """Equal rows of a plan's source."""
    import pyarrow as pa

    two = np.zeros(2, np.int64)
    arrays = [_equal_values(2, storage(type_named(dict(source.columns)[name]))) for name in names]
    columns = Columns(pa.RecordBatch.from_arrays(arrays, list(names))) if arrays else None
    return SourceBatch(two, two, two.astype(np.uint64), None, None, None, columns)


def _equal_values(count: int, kind: pa.DataType) -> pa.Array:
    """A column of one value."""
    import pyarrow as pa

    try:
        return rebuilt(np.zeros(count, np.int64), kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # binary: without a value is enough
        return pa.nulls(count, kind)
