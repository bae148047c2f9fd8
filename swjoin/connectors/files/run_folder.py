"""Files in the directory of a run, read and validated: run.json, verified.json, metrics of slaves, events.

What: `read_report`, `read_verified`, `read_metrics`, `read_events`; `not_verifiable(report, config)`.
Why: a run may have been killed at any time, and files are copied, truncated and edited: readers get values of the declared
types, or one line that names the file. A value that the run did not have is missing or null.
Stays out: the use of the values (`cli.report`, `cli.events`, `plots`, `api.runs`, `spark`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.config.run import RunConfig
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError, one_line
from swjoin.core.path_patterns import Shape, first_mismatch, is_amount, is_count, is_number
from swjoin.core.units import MAX_SPAN_US, is_utf8

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


import numpy as np


def _is_time(value: Any) -> bool:
    return is_number(value) and abs(value) <= MAX_SPAN_US


_SIDES = dict.fromkeys(STREAM_NAMES, is_count)
_TAKEN = {"start?": is_amount, "predicted?": is_amount, "peak": is_amount, "limit?": is_amount}
_REPORT: dict[str, Shape] = {
    "config": dict,
    "ledger": {"balanced?": bool, "complaints?": [str]},
    "results": {"count?": is_count, "digest?": str, "produced?": is_count, "columns?": [str]},
    **dict.fromkeys(("complete?", "resumable?", "simulated?"), bool),
    **dict.fromkeys(("failure?", "command?", "config_digest?", "run_id?"), str),
    **dict.fromkeys(("joined?", "null_key?", "late?", "shed?"), _SIDES),
    **dict.fromkeys(("wall_s?", "join_s?", "input_tuples_per_s?"), is_amount),
    **dict.fromkeys(("moves?", "epochs?"), is_count),
    "versions?": {"*": str},
    "ranks?": {"*": {"host": str, "role": str}},
    "input?": {name: {"tuples": is_count, "earliest_us?": _is_time, "latest_us?": _is_time} for name in STREAM_NAMES},
    "format?": is_count,
    "warnings?": [str],
    "prefill?": {"pairs": is_count, "digest": str, "s?": is_amount},
    "machine?": {"overloaded?": bool, "reasons?": [str]},
    "checkpoints?": {"recoveries?": [dict]},
    "delay_s?": dict.fromkeys(("mean?", "p50?", "p99?", "max?"), is_amount),
    "overload?": {
        **dict.fromkeys(("policy?", "victims?"), str),
        **dict.fromkeys(("lost_pairs_estimate?", "recall_estimate?", "spilled_tuples?", "peak_spilled_bytes?"), is_amount),
    },
    "movement?": {"state_bytes?": is_amount},
    "declustering?": [{"time_s": is_amount, "active_slaves": is_count}],
    "memory?": {
        "ranks": {"*": _TAKEN},
        "slaves": [{"slave": is_count, "window": _TAKEN, "buffer": _TAKEN, "left": {"window_tuples": is_count}}],
        "unforeseen?": str,
    },
    "peak_rss_bytes?": {"*": is_count},
}
_COUNTS = {"*": is_count}
_PLAN_REPORT: dict[str, Shape] = {
    **_REPORT,
    **dict.fromkeys(("joined?", "null_key?", "late?", "shed?"), _COUNTS),
    "input?": {"*": {"tuples": is_count, "earliest_us?": _is_time, "latest_us?": _is_time}},
    "stages": [
        {
            **{"join": str, "description": str, "received": _SIDES, "null_key": _SIDES, "produced": is_count},
            **{"matches?": is_count, "work_s?": [is_amount]},
            **{"work_rows?": [is_count], "peak_window_tuples?": [is_count]},
            **{"slaves?": [is_count], "peak_window_bytes?": [is_count], "moves?": is_count},
            "declustering?": [{"time_s": is_amount, "active_slaves": is_count}],
        }
    ],
    "plan?": dict,
    "edges": [{"from": str, "to": str, "port": str, "sent": {"rows": is_count}, "bytes": is_count, "null_key": is_count}],
}
_VERIFIED: Shape = {
    "equal": bool,
    **dict.fromkeys(("count", "claimed_count"), is_count),
    **dict.fromkeys(("digest", "claimed_digest", "engine?"), str),
}
_INTEGERS = ("slave", "epoch", "epoch_end_us", "left_tuples", "right_tuples", "pairs", "process_us")
METRICS = (*_INTEGERS, "delay_mean_us", "occupancy_ratio")
_EVENT_TYPES = {"int": "int64", "str": "string", "float": "double"}


def _is_text(plain: Any) -> bool:
    """Whether all text is valid UTF-8: in JSON an escape may be half of a surrogate pair."""
    rest = [plain]
    while rest:
        value = rest.pop()
        if isinstance(value, str) and not is_utf8(value):
            return False
        if isinstance(value, dict):
            rest += [*value, *value.values()]
        elif isinstance(value, list):
            rest += value
    return True


def read_report(run_dir: Path) -> dict[str, Any]:
    """run.json, or that file itself. UserError, with file and key, when it is missing or is not the report of a run."""
    path = run_dir if run_dir.suffix == ".json" else run_dir / "run.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{run_dir}: holds no run.json; is it the directory of a run, and has the run ended?") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); is {run_dir} the directory of a run?") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON ({one_line(error)})") from None
    wrong = first_mismatch(_PLAN_REPORT if isinstance(found, dict) and "stages" in found else _REPORT, found)
    if wrong is not None:
        raise UserError(f"{path}: is not the report of a run{f' ({wrong[1:]} is not what it must be)' if wrong else ''}")
    if not _is_text(found):
        raise UserError(f"{path}: holds text that is not Unicode (half of a surrogate pair); the file is damaged")
    report: dict[str, Any] = found
    return report


def read_verified(run_dir: Path) -> dict[str, Any] | None:
    """The result of `swjoin verify`; None before it has run. UserError when the file is damaged."""
    path = run_dir / "verified.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        found = None
    if first_mismatch(_VERIFIED, found) is not None or not _is_text(found):
        raise UserError(f"{path}: is damaged; run swjoin verify again")
    verified: dict[str, Any] = found
    return verified


def not_verifiable(report: dict[str, Any], config: RunConfig) -> str | None:
    """Why the result of such a run cannot be recomputed; None when it can."""
    if "stages" in report and "plan" not in report:
        return "its run.json has no plan; there is nothing to recompute it from"
    if config.live:
        return "its streams arrived live, and are not kept; there is nothing to verify it from"
    if config.time.idle_timeout_us and config.time.late != "side":
        return "what is late after an idle_timeout is known only from the run; use late: side to verify it"
    return None


# ---------------------------------------------------------------- tables


def _table(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file; is {path.parents[1]} the directory of a run, and has the run ended?")
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)})") from None
    return table


def read_metrics(run_dir: Path) -> Mapping[str, np.ndarray]:
    """Columns of DIR/metrics/slaves.parquet, one row per slave and distribution epoch. UserError when it is missing or has
    invalid values."""
    import numpy as np
    import pyarrow as pa

    path = run_dir / "metrics" / "slaves.parquet"
    table = _table(path)
    columns: dict[str, np.ndarray] = {}
    for name in dict.fromkeys((*METRICS, *table.column_names)):
        if table.column_names.count(name) != 1:
            raise UserError(f"{path}: column {name} is missing or there twice; is it the metrics of a run?")
        column = table.column(name)
        whole = pa.types.is_integer(column.type) or (pa.types.is_floating(column.type) and name not in _INTEGERS)
        values = column.to_numpy()
        if name in METRICS and not (whole and not column.null_count and (np.isfinite(values) & (values >= 0)).all()):
            raise UserError(f"{path}: column {name} holds what no run writes; the file is damaged")
        columns[name] = values
    return columns


def read_events(run_dir: Path) -> list[RunEvent]:
    """Events of DIR/metrics/events.parquet, in order. UserError when the file is missing or has invalid values."""
    path = run_dir / "metrics" / "events.parquet"
    table = _table(path)
    wanted = [field for field in fields(RunEvent) if field.name != "stage" or "stage" in table.column_names]  # earlier: none
    for field in wanted:
        if table.column_names.count(field.name) != 1:
            raise UserError(f"{path}: column {field.name} is missing or there twice; is it the events of a run?")
        column = table.column(field.name)
        if str(column.type) != _EVENT_TYPES[str(field.type)] or column.null_count:
            raise UserError(f"{path}: column {field.name} holds what no run writes; the file is damaged")
    try:
        events = [RunEvent(**row) for row in table.select([f.name for f in wanted]).to_pylist()]
    except ValueError as error:  # invalid text
        raise UserError(f"{path}: cannot be read ({error})") from None
    if not all(is_amount(e.amount) and abs(e.amount) < 2.0**63 for e in events):
        raise UserError(f"{path}: column amount holds what no run writes; the file is damaged")
    return events


FORMAT = 2  # of run.json; without it, or below, digests are another sum (CHANGELOG.md)
