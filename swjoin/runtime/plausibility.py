"""Warnings about results that are correct for their input, while the input is probably wrong.

What: `warnings_of` an `Answer`; `add_warnings` to run.json; `warn` in Python; `report_ranges`, the time ranges as text.
Why: a wrong unit, a wrong zone or keys in two spellings give a result that is empty, exact, and balanced. One function serves
the command line, runs and the Python API.
Stays out: input that cannot be used at all (`connectors.row_encoder` refuses it), printing (`cli.summary`).

If no pair matched, keys and times of the rows are read a second time to find the nearest miss. Of large inputs a sample of the
keys is kept, the same on both sides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.instances import Instances
from swjoin.config.job import Job
from swjoin.config.run import QueryConfig, RunConfig, TimeConfig
from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, U64, SourceBatch, TupleBatch
from swjoin.core.errors import ImplausibleWarning, SwjoinError
from swjoin.core.join_semantics import Bounds, mix64
from swjoin.core.ledger import StreamCounts
from swjoin.plan.logical import Source
from swjoin.plan.multiway import MultiwayJoin, Part
from swjoin.plan.stages import Edge, Stage
from swjoin.runtime.run_report import input_names, iso_text, ledger_of

if TYPE_CHECKING:
    from swjoin.connectors.source import Source as InputSource
    from swjoin.core.key_encoder import KeyEncoder

KEPT_ROWS = 1 << 20  # of each side, for the nearest miss; beyond, every second key is left out, and so on
READ_ROWS = 1 << 25  # of each side
_MOST_HALVINGS = 16
_MANY_ROWS = 1_000  # of each side; fewer may well be a sample, of which a window is longer
_YEAR_US = 365 * 86_400_000_000
_UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_YEAR_2000_US, _YEAR_2100_US, _YEAR_2300_US = (
    int(np.datetime64(year, "us").astype(np.int64)) for year in ("2000", "2100", "2300")
)
_SPANS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"), (1, "us"))


class Rows(Protocol):
    """Both inputs, which can be read again."""

    def batches(self, stream: int) -> Iterator[SourceBatch]:
        """Rows in the order of the intake, without payload."""
        ...

    def place(self, stream: int, row_id: int) -> str:
        """File and row of a row id."""
        ...

    def key(self, stream: int, key: int) -> str:
        """A key as text, from its code."""
        ...


@dataclass(frozen=True)
class Answer:
    """Counts and declarations of a join that has ended.

    units: declared units of integer times, None for other columns. columns: names of the time columns. matches: pairs, or rows
    that have a match; None: unknown. unread: text about files of each input directory that were not read, or None.
    """

    query: QueryConfig
    time: TimeConfig
    counts: tuple[StreamCounts, StreamCounts]
    units: tuple[str | None, str | None]
    columns: tuple[str, str]
    matches: int | None
    unread: tuple[str | None, str | None] = (None, None)


def warnings_of(answer: Answer, rows: Rows | None = None) -> list[str]:
    """Warnings, a line each; none for a plausible result. rows: None if they cannot be read again in the same order."""
    sides = list(zip(STREAM_NAMES, answer.counts, answer.units, answer.columns, strict=True))
    lines = [_unit_line(name, counts, unit, column) for name, counts, unit, column in sides]
    lines += [f"{name}: {text}" for name, text in zip(STREAM_NAMES, answer.unread, strict=True) if text is not None]
    lines += [_left_out_line(name, counts) for name, counts, _, _ in sides]
    bounds = _bounds_of(answer.query)
    if bounds.empty:
        lines.append(f"the bounds allow no difference of times (lower {bounds.lower_us} us, upper {bounds.upper_us} us)")
    elif (line := _ranges_line(STREAM_NAMES, answer.counts, answer.query)) is not None:
        lines.append(line)
    else:
        lines.append(_longer_line(STREAM_NAMES, answer.counts, answer.query))
        lines += _without_a_match(answer, rows)
    return [line for line in lines if line is not None]


def _without_a_match(answer: Answer, rows: Rows | None) -> Iterator[str | None]:
    if answer.matches == 0 and rows is not None and all(c.joined and not c.shed for c in answer.counts):
        with contextlib.suppress(SwjoinError, OSError, MemoryError):  # the inputs have changed or gone; the answer stands
            yield _nothing_matched(answer, rows)


def warn(lines: Sequence[str], stack_level: int) -> None:
    """Issue Python warnings. stack_level: 1 for the caller of this function."""
    for line in lines:
        warnings.warn(line, ImplausibleWarning, stacklevel=stack_level + 1)


def add_warnings(report: dict[str, Any], job: Job, sources: Sequence[InputSource], instances: Instances | None) -> None:
    """Put the warnings into run.json of a complete run. sources: of a join of two streams. instances: of a plan."""
    if not report["complete"]:
        return
    if instances is not None:
        report["warnings"] = _warnings_of_plan(report, job, instances)
        return
    config, ledger = job.config, ledger_of(report)
    answer = Answer(
        config.query,
        config.time,
        (ledger.left, ledger.right),
        (sources[LEFT].codec.time_unit, sources[RIGHT].codec.time_unit),
        (config.left.time, config.right.time),
        report["results"]["matches"],
        (getattr(sources[LEFT], "unread", None), getattr(sources[RIGHT], "unread", None)),
    )
    again = config.left.path is not None and config.time.model == "event" and config.time.idle_timeout_us == 0
    report["warnings"] = warnings_of(answer, FileRows(config) if again else None)


def _warnings_of_plan(report: dict[str, Any], job: Job, instances: Instances) -> list[str]:
    """From its counts alone: inputs whose times are in another unit, or of which no row was joined, and joins whose sides
    cannot meet, have null keys alone, or have no pair."""
    counts = {source.name: _counts_in(report, source.name) for source in instances.stages.sources}
    inputs = [node for node in instances.logical.nodes if isinstance(node, Source)]  # static tables among them
    lines: list[str | None] = []
    for source, stream in zip(inputs, job.config.inputs, strict=True):
        if source.name in counts:
            unit = stream.time_unit if "int" in dict(source.columns).get(str(source.time), "") else None
            lines.append(_unit_line(source.name, counts[source.name], unit, str(source.time)))
            lines.append(_left_out_line(source.name, counts[source.name]))
    for stage in instances.stages.stages:
        if stage.joins:
            lines += _lines_of_join(report, stage, instances, counts)
        elif isinstance(stage.node, MultiwayJoin):
            lines += _lines_of_multiway_join(report, stage.id, stage.node, instances.stages.edges_to(stage), counts)
    return list(dict.fromkeys(line for line in lines if line is not None))


def _counts_in(report: dict[str, Any], name: str) -> StreamCounts:
    given = report["input"][name]
    more = {what: report[what][name] for what in ("joined", "null_key", "late", "shed")}
    return StreamCounts(tuples=given["tuples"], earliest_us=given["earliest_us"], latest_us=given["latest_us"], **more)


def _lines_of_join(
    report: dict[str, Any], stage: Stage, instances: Instances, counts: dict[str, StreamCounts]
) -> Iterator[str | None]:
    plain, query = report["stages"][stage.id], stage.join.semantics
    edges = [instances.stages.edges_to(stage, port) for port in (LEFT, RIGHT)]
    names = [" and ".join(dict.fromkeys(edge.sender.name for edge in side)) for side in edges]
    what = f"{stage.name} of {names[LEFT]} and {names[RIGHT]}"
    for port, side in enumerate(edges):
        of_edges = [report["edges"][edge.id] for edge in side]
        null = sum(edge["null_key"] for edge in of_edges) + plain["null_key"][STREAM_NAMES[port]]
        if null and null == sum(edge["null_key"] + edge["sent"]["rows"] for edge in of_edges):
            yield f"{what}: every row of {names[port]} has a null key ({null:,} rows)"
    one, two = (side[0].sender if len(side) == 1 else None for side in edges)
    if isinstance(one, Source) and isinstance(two, Source):
        both = counts[one.name], counts[two.name]
        found = _ranges_line(names, both, query)
        line = _longer_line(names, both, query) if found is None else found
        yield None if line is None else f"{what}: {line}"
        if found is not None:
            return
    joined = plain["joined"]
    if plain["matches"] == 0 and all(joined.values()):
        yield f"{what}: nothing matched, of {joined['left']:,} and {joined['right']:,} rows; check keys, times and conditions"


def _lines_of_multiway_join(
    report: dict[str, Any], number: int, node: MultiwayJoin, edges: Sequence[Edge], counts: dict[str, StreamCounts]
) -> Iterator[str | None]:
    """edges: to its stage, each of one of its inputs."""
    by_input: list[list[Edge]] = [[] for _ in node.inputs]
    for edge in edges:
        assert isinstance(edge.steps[-1], Part), "an edge to a multiway join is of one of its inputs"
        by_input[edge.steps[-1].number].append(edge)
    names = [" and ".join(dict.fromkeys(edge.sender.name for edge in some)) for some in by_input]
    what = f"{node.name} of {', '.join(names[:-1])} and {names[-1]}"
    came = []
    for name, some in zip(names, by_input, strict=True):
        of_edges = [report["edges"][edge.id] for edge in some]
        null, sent = sum(edge["null_key"] for edge in of_edges), sum(edge["sent"]["rows"] for edge in of_edges)
        came.append(sent)
        if null and not sent:
            yield f"{what}: every row of {name} has a null key ({null:,} rows)"
    for join, sides in zip(node.joins, node.sides, strict=True):
        pair = [by_input[side.part] if side.part is not None else [] for side in sides]
        one, two = (some[0].sender if len(some) == 1 else None for some in pair)
        if isinstance(one, Source) and isinstance(two, Source):
            apart = _ranges_line([one.name, two.name], (counts[one.name], counts[two.name]), join.semantics)
            if apart is not None:
                yield f"{what}: {apart}"
                return
    if report["stages"][number]["produced"] == 0 and all(came):
        rows = f"{', '.join(f'{rows:,}' for rows in came[:-1])} and {came[-1]:,} rows"
        yield f"{what}: nothing matched, of {rows}; check keys, times and conditions"


# ---------------------------------------------------------------- as text


def span_text(us: int) -> str:
    """A duration in its three largest units that are not zero."""
    parts = []
    for size, name in _SPANS:
        count, us = divmod(us, size)
        if count:
            parts.append(f"{count:,} {name}")
    return " ".join(parts[:3]) or "0 s"


def _plain_text(us: int) -> str:
    """A time that is a number rather than a date."""
    size, name = next((s for s in _SPANS[3:] if abs(us) >= s[0]), _SPANS[3])
    whole, _, fraction = f"{abs(us) / size:,.6f}".partition(".")
    return f"{'-' if us < 0 else ''}{whole}.{fraction}".rstrip("0").rstrip(".") + f" {name}"


def range_texts(counts: Sequence[StreamCounts]) -> list[str]:
    """Each stream's first and last time: as dates, or as numbers when all are within a year of 1970."""
    known = [t for c in counts for t in (c.earliest_us, c.latest_us) if t is not None]
    text = _plain_text if all(abs(t) < _YEAR_US for t in known) else iso_text
    return [
        "no times" if c.earliest_us is None or c.latest_us is None else f"{text(c.earliest_us)} to {text(c.latest_us)}"
        for c in counts
    ]


def report_ranges(report: dict[str, Any]) -> list[tuple[str, str]]:
    """(stream, its first and last time) from run.json."""
    names = input_names(report)
    found = [report["input"][name] for name in names]
    counts = [StreamCounts(earliest_us=f.get("earliest_us"), latest_us=f.get("latest_us")) for f in found]
    return list(zip(names, range_texts(counts), strict=True))


# ---------------------------------------------------------------- warnings from counts and time ranges


def _unit_line(side: str, counts: StreamCounts, unit: str | None, column: str) -> str | None:
    """The warning about integers in another unit than declared: all after the year 2300, or in 1970 while a coarser unit puts
    all of them between 2000 and 2100. Numbers that begin near zero cause no warning."""
    first, last = counts.earliest_us, counts.latest_us
    if unit is None or first is None or last is None:
        return None

    def in_unit(other: str) -> tuple[int, int]:
        low, high = (t * _UNITS_NS[other] // _UNITS_NS[unit] for t in (first, last))
        return low, high

    names = list(_UNITS_NS)
    declared = f"{side}: time column {column}, declared in {unit}, holds times from {iso_text(first)} to {iso_text(last)}"
    if last >= _YEAR_2300_US:
        finer = names[names.index(unit) + 1 :]
        likely = [u for u in finer if _YEAR_2000_US <= in_unit(u)[1] < _YEAR_2300_US]
    else:
        coarser = names[: names.index(unit)]
        likely = [u for u in coarser if in_unit(u)[0] >= _YEAR_2000_US and in_unit(u)[1] < _YEAR_2100_US]
        if not likely:
            return None
    if not likely:
        return f"{declared}; check the column and its unit"
    low, high = in_unit(likely[0])
    return f"{declared}; in {likely[0]} they would be from {iso_text(low)} to {iso_text(high)}: check the time unit"


def _left_out_line(side: str, counts: StreamCounts) -> str | None:
    """The warning that all rows of a stream were left out."""
    if not counts.tuples or counts.null_key + counts.late < counts.tuples:
        return None
    reasons = ((counts.null_key, "with a null key"), (counts.late, "late or without a time"))
    parts = " and ".join(f"{count:,} {what}" for count, what in reasons if count)
    return f"{side}: no row was joined, of {counts.tuples:,} read: {parts}"


def _bounds_of(query: QueryConfig) -> Bounds:
    """Of an as-of join, within which a match may be."""
    return query.bounds if query.as_of is None else query.as_of.candidates


def _ranges_line(names: Sequence[str], counts: Sequence[StreamCounts], query: QueryConfig) -> str | None:
    """The warning that the times of both streams are too far apart for any pair."""
    apart, bounds = _apart(counts), _bounds_of(query)
    if apart is None or bounds.count_windows:
        return None
    after, before = apart[0] - bounds.upper_us, bounds.lower_us - apart[1]
    if after <= 0 and before <= 0:
        return None
    what = f"{names[RIGHT]} is {span_text(max(after, before))} too {'late' if after > 0 else 'early'}"
    return f"the times of both sides cannot meet within the bounds: {_ranges(names, counts)}; {what}"


def _longer_line(names: Sequence[str], counts: Sequence[StreamCounts], query: QueryConfig) -> str | None:
    """The warning that the bounds exclude no pair, though there are many rows."""
    apart, bounds, as_of = _apart(counts), _bounds_of(query), query.as_of
    if apart is None or bounds.count_windows or query.unbounded or min(c.joined for c in counts) < _MANY_ROWS:
        return None
    back = bounds.lower_us <= apart[0] or (as_of is not None and not as_of.looks_back)
    ahead = apart[1] <= bounds.upper_us or (as_of is not None and not as_of.looks_ahead)
    if not back or not ahead:
        return None
    most = span_text(max(bounds.upper_us, -bounds.lower_us))
    return f"the window, up to {most}, is longer than the data, so it excludes no pair: {_ranges(names, counts)}"


def _apart(counts: Sequence[StreamCounts]) -> tuple[int, int] | None:
    """The least and the greatest right time - left time of two rows; None if a stream has no times."""
    left, right = counts
    if left.earliest_us is None or left.latest_us is None or right.earliest_us is None or right.latest_us is None:
        return None
    return right.earliest_us - left.latest_us, right.latest_us - left.earliest_us


def _ranges(names: Sequence[str], counts: Sequence[StreamCounts]) -> str:
    return ", ".join(f"{name} {text}" for name, text in zip(names, range_texts(counts), strict=True))


# ---------------------------------------------------------------- warnings from the rows


class FileRows:
    """The files of a run, read again. Ids are positions, also if the run has an id column."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._sources: tuple[InputSource, InputSource] | None = None
        self._keys: KeyEncoder | None = None

    def batches(self, stream: int) -> Iterator[SourceBatch]:
        from swjoin.connectors.files.source import open_sources

        if self._sources is None:
            left, right = (dataclasses.replace(s, id=None, columns=()) for s in (self._config.left, self._config.right))
            *sources, self._keys = open_sources(left, right, carry_payload=False, sort=self._config.time.sort)
            self._sources = (sources[LEFT], sources[RIGHT])
        source = self._sources[stream]
        try:
            while (batch := source.read()) is not None:
                yield batch
        finally:
            source.close()

    def place(self, stream: int, row_id: int) -> str:
        assert self._sources is not None
        return self._sources[stream].locate(row_id)

    def key(self, stream: int, key: int) -> str:
        assert self._keys is not None
        return key_text(self._keys, stream, key)


def key_text(keys: KeyEncoder, stream: int, key: int) -> str:
    """A key as text, from its code."""
    import pyarrow as pa

    from swjoin.core.pair_columns import rebuilt

    if not keys.native:
        return repr(keys.dictionary.text(key))
    kind = keys.types[stream][0]
    return str(rebuilt(np.array([key], np.int64), kind.value_type if pa.types.is_dictionary(kind) else kind)[0])


@dataclass
class _Sample:
    """Rows of one side that can match. halvings: how many times half of the keys were left out. whole: all rows
    were read."""

    key: I64
    ts: I64
    id: U64
    halvings: int = 0
    whole: bool = True

    def __len__(self) -> int:
        return len(self.key)

    def chosen(self, mask: Any) -> _Sample:
        return _Sample(self.key[mask], self.ts[mask], self.id[mask], self.halvings, self.whole)

    def halved(self, halvings: int) -> _Sample:
        """The rows whose keys remain after so many halvings, which are the same keys on both sides."""
        if halvings <= self.halvings:
            return self
        low_bits = np.uint64((1 << halvings) - 1)
        return dataclasses.replace(self.chosen(mix64(self.key.view(np.uint64)) & low_bits == 0), halvings=halvings)


def _joinable(rows: Rows, stream: int, time: TimeConfig) -> Iterator[TupleBatch]:
    """The joined tuples of a stream, without null keys and late rows."""
    intake = StreamIntake(stream, dataclasses.replace(time, late="drop"))
    for batch in rows.batches(stream):
        intake.read(dataclasses.replace(batch, rows=None), 0)
        intake.arrive_all()
        yield from intake.take_released()
        if intake.counts.tuples >= READ_ROWS:
            break
    intake.end()
    yield from intake.take_released()


def _sample(rows: Rows, stream: int, time: TimeConfig) -> _Sample:
    parts = [_Sample(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))]
    halvings = kept = read = 0
    whole = True
    for batch in _joinable(rows, stream, time):
        read += len(batch)
        parts.append(_Sample(batch.key, batch.ts, batch.id).halved(halvings))
        kept += len(parts[-1])
        while kept > KEPT_ROWS and halvings < _MOST_HALVINGS:
            fewer = [part.halved(halvings + 1) for part in parts]
            if not any(map(len, fewer)):
                break  # all rows have a few keys
            halvings, parts, kept = halvings + 1, fewer, sum(map(len, fewer))
        if kept > KEPT_ROWS or read >= READ_ROWS:
            whole = False
            break
    key, ts, ids = (np.concatenate([getattr(p, name) for p in parts]) for name in ("key", "ts", "id"))
    return _Sample(key, ts, ids, halvings, whole)


def _nothing_matched(answer: Answer, rows: Rows) -> str | None:
    """The warning that no pair matched: no equal keys, a condition that never holds, or times outside the bounds."""
    left, right = (_sample(rows, stream, answer.time) for stream in (LEFT, RIGHT))
    examples = [
        f"{STREAM_NAMES[s]} has {rows.key(s, int(side.key[0]))} at {rows.place(s, int(side.id[0]))}"
        for s, side in ((LEFT, left), (RIGHT, right))
        if len(side)
    ]
    halvings = max(left.halvings, right.halvings)
    limits = [f"one key in {1 << halvings:,}"] if halvings else []
    limits += [] if left.whole and right.whole else ["the first rows"]
    sampled = f" (in a sample: {' of '.join(limits)})" if limits else ""
    left, right = left.halved(halvings), right.halved(halvings)
    if not (len(left) and len(right)):
        return None
    common = np.intersect1d(left.key, right.key)
    if not len(common):
        return f"nothing matched: no key of the left side is on the right side{sampled}; {', '.join(examples)}"
    found = f"nothing matched, though {len(common):,} key{'s are' if len(common) > 1 else ' is'} on both sides{sampled}"
    if answer.query.bounds.count_windows:
        return f"{found}: rows with equal keys are never within the last rows of the other side"
    left, right = (side.chosen(np.isin(side.key, common)) for side in (left, right))
    missed_us, apart_us, left_id, right_id = _nearest(left, right, _bounds_of(answer.query))
    if missed_us <= 0:
        held = f"{found}: pairs with equal keys lie within the bounds, but for none of them this holds: {answer.query.where}"
        return None if answer.query.where is None else held
    places = ", ".join(f"{STREAM_NAMES[s]} {rows.place(s, i)}" for s, i in ((LEFT, left_id), (RIGHT, right_id)))
    apart = f"right {span_text(abs(apart_us))} {'after' if apart_us >= 0 else 'before'} left"
    return f"{found}: the nearest pair with equal keys is {span_text(missed_us)} outside the bounds ({apart}): {places}"


def _nearest(left: _Sample, right: _Sample, bounds: Bounds) -> tuple[int, int, int, int]:
    """Of the pair with equal keys that is nearest to the bounds: its distance from the bounds in microseconds (0 or less:
    within them), right time - left time, and both ids. Every key is on both sides."""
    key = np.concatenate([left.key, right.key])
    ts = np.concatenate([left.ts + bounds.lower_us, right.ts])  # a left row where its first partner could be
    is_right = np.arange(len(key)) >= len(left)
    order = np.lexsort((is_right, ts, key))
    key, ts, is_right = key[order], ts[order], is_right[order]
    index = np.arange(len(order))
    last = len(order) - 1
    after = np.minimum.accumulate(np.where(is_right, index, last + 1)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(is_right, index, -1))
    mine = index[~is_right]
    never = np.iinfo(np.int64).max
    missed = []
    for theirs, there in (
        (np.minimum(after[mine], last), after[mine] <= last),
        (np.maximum(before[mine], 0), before[mine] >= 0),
    ):
        same = there & (key[theirs] == key[mine])
        apart = ts[theirs] - ts[mine]
        missed.append(
            (np.where(same, np.where(apart >= 0, apart - (bounds.upper_us - bounds.lower_us), -apart), never), theirs)
        )
    side = int(missed[1][0].min() < missed[0][0].min())
    misses, theirs = missed[side]
    at = int(misses.argmin())
    i, j = order[mine[at]], order[theirs[at]] - len(left)
    return int(misses[at]), int(right.ts[j] - left.ts[i]), int(left.id[i]), int(right.id[j])
