"""Validation of manifests, before any value in one is used.

What: `check_manifest`, `check_master_state`, `check_gateway_state`; `restoring`, around code that restores a role.
Why: a checksum proves that the file was not changed, not that it is a checkpoint. Names in it become paths, numbers become
sizes and indexes.
Stays out: the meaning of the values (`checkpoint.store`, the roles).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.path_patterns import first_mismatch, is_amount, is_count, is_number
from swjoin.core.splits import ALL_ROWS
from swjoin.plan.logical import QUERY_NAME
from swjoin.state.delay_histogram import HISTOGRAM_SIZE


def _digest(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 64


def _bin(value: Any) -> bool:
    return is_count(value) and value < HISTOGRAM_SIZE


def _time(value: Any) -> bool:
    return is_number(value) and abs(value) <= 3 << 61  # watermarks, and times below which tuples have expired


def _maybe_time(value: Any) -> bool:
    return value is None or _time(value)


def _boundary(value: Any) -> bool:
    """End of a distribution epoch: times of tuples are below 2^61, and there must be a next end."""
    return is_number(value) and BEGIN_OF_TIME_US <= value < 3 << 60


def _maybe_boundary(value: Any) -> bool:
    return value is None or _boundary(value)


def _log_name(value: Any) -> bool:
    """A name in the folder of checkpoints, not a path."""
    return isinstance(value, str) and re.fullmatch(r"(gateway|segment)-[\d-]+\.(frames|log)", value, re.ASCII) is not None


def _late_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"late-[\d-]+\.rows", value, re.ASCII) is not None


def _result_name(value: Any) -> bool:
    """The name of a file in the folder of results, or of a query's in its own there."""
    if not isinstance(value, str):
        return False
    query, separator, name = value.rpartition("/")
    known = not separator or QUERY_NAME.fullmatch(query) is not None
    return known and re.fullmatch(r"part-(s\d+-)?[\d-]+(\.\w+)?", name, re.ASCII) is not None


def _maybe_estimates(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and is_amount(value.get("lost_pairs")))


def _maybe_order(value: Any) -> bool:
    """Sequence numbers: at most as many have passed as were assigned, and they grow with the ends of slots."""
    shape = {
        "placed": (is_count, is_count),
        "passed": (is_count, is_count),
        "last_us": _time,
        "ends": ([_time], [is_count], [is_count]),
    }
    if value is None:
        return True
    if first_mismatch(shape, value) is not None:
        return False
    ends = value["ends"]
    rising = all(a <= b for column in ends for a, b in itertools.pairwise(column))
    fewer = all(a <= b for a, b in zip(value["passed"], value["placed"], strict=True))
    return rising and fewer and len({len(column) for column in ends}) == 1


_MARK = (is_count, is_count)  # length and checksum


def _maybe_late(value: Any) -> bool:
    """A file of late rows in the folder of checkpoints, and how much of it is valid."""
    shape = {"name": _late_name, "mark": _MARK}
    return value is None or first_mismatch(shape, value) is None


def _open_split(value: Any) -> bool:
    """The fields of a split and the rows of it that were read; nothing where none was open."""
    if not isinstance(value, list) or not all(map(is_number, value)):
        return False
    return not value or (len(value) == 6 and value[0] >= 0 and 0 <= value[5] <= ALL_ROWS)


_STREAM = {
    "counts": {
        **{name: is_count for name in ("tuples", "joined", "null_key", "late", "shed")},
        "earliest_us": _maybe_time,
        "latest_us": _maybe_time,
    },
    "high_us": _time,
    "first_us": _maybe_time,
    "ended": bool,
    "idle": bool,
    "arrived_high_us": _time,
}
_CONTROLLER = {
    **dict.fromkeys(("slaves", "next_number"), is_count),
    **{key: [is_count] for key in ("active", "emptying", "owner")},
    "first_epoch": is_number,
    "random": dict,
    "history": [{"epoch": is_number, "time_s": is_amount, "active_slaves": is_count}],
}
_MASTER = {
    "master": {
        **dict.fromkeys(("generation", "completed"), is_count),
        "all_held": bool,
        "epoch": is_number,
    },
    "controller": _CONTROLLER,
    "more_stages?": [_CONTROLLER],
    "splits?": [{"partial": [_open_split], "next_row": is_count}],
    "traffic?": {
        "work_ns?": [[is_count]],
        "state_bytes?": [[is_count]],
        "sent?": [(is_count, is_count, is_count, is_count, is_count)],
    },
}
_GATEWAY = {
    "gateway": {
        "epochs_closed": is_count,
        "origin_us": _maybe_boundary,
        "boundary_us": _boundary,
        "passed_us": [_time],
        "streams_ended_us": _maybe_time,
        "promised": (_time, _time),
        "epoch": is_number,
        "epoch_size": [(_time, is_count)],
        "peaks": (is_count, is_count),
        "order": _maybe_order,
        "finished_moves": [(is_number, is_count)],
    },
    "overload": {
        "by_group": ([is_count], [is_count]),
        "estimates": _maybe_estimates,
        **dict.fromkeys(("spilled_tuples", "peak_stored_bytes"), is_count),
    },
    "streams": [_STREAM],
    "edges?": dict,
    "newest_us?": _time,
    "splits?": [_open_split],
}
_SEGMENT = {
    "name": _log_name,
    **dict.fromkeys(("generation", "sub_group", "nbytes", "count", "tuples", "stage"), is_count),
    "newest_us": (_time, _time),
}
_GATEWAY_PART = {
    "state": dict,
    "frames": {"name": _log_name, "nbytes": is_count, "count": is_count},
    "tuples": [(str, is_count)],
    "late": _maybe_late,
    "keys": (is_count, _MARK, _MARK),
    "positions": [dict],
}
_TALLY = {
    "count": is_count,
    "digest": _digest,
    **dict.fromkeys(("delay_sum_us", "delay_max_us"), is_amount),
    "histogram": ([_bin], [is_count]),
    "queries?": [(is_count, is_count, _digest)],
}
_STAGE = {
    **dict.fromkeys(("joined", "null_key"), (is_count, is_count)),
    "produced": is_count,
    **dict.fromkeys(("alive_us", "joined_until_us"), (_time, _time)),
}
_MANIFEST = {
    "config": dict,
    "config_digest": str,
    **dict.fromkeys(("generation", "incarnation", "epoch", "produced"), is_count),
    "clock_us": _time,
    "alive_us": (_time, _time),
    "joined": (is_count, is_count),
    "joined_until_us": [(_time, _time)],
    "joined_before_us?": [(_time, _time)],
    "segments": [_SEGMENT],
    "master": {"state": dict},
    "gateways": [_GATEWAY_PART],
    "sinks": [{"results": [_result_name], "metrics": _MARK, "state": {"epoch": is_number, "tally": _TALLY}}],
    "stages?": [_STAGE],
    "edges?": dict,
    "plan?": dict,
    "changes?": dict,
    "inputs": [(str, is_count, is_count)],
    "command": str,
    "run_dir": str,
    "run_id?": str,
}


def check_manifest(path: Path, plain: dict[str, Any]) -> None:
    """RunFailed, with file and key, for anything but a manifest."""
    wrong = first_mismatch(_MANIFEST, plain)
    for kind in ("gateways", "sinks"):
        if wrong is None and not plain[kind]:
            wrong = f".{kind}"
    for number, sink in enumerate(plain["sinks"] if wrong is None else []):
        if len({len(part) for part in sink["state"]["tally"]["histogram"]}) > 1:
            wrong = f".sinks[{number}].state.tally.histogram"
        if sink["state"]["epoch"] != plain["epoch"]:
            wrong = f".sinks[{number}].state.epoch"  # the sink would wait for epochs that never come
    if wrong is None and len(plain["segments"]) != len({s["name"] for s in plain["segments"]}):
        wrong = ".segments (one comes twice)"
    if wrong is None and any(s["stage"] >= len(plain.get("stages", [None])) for s in plain["segments"]):
        wrong = ".segments (of a stage that there is not)"
    if wrong is not None:
        raise RunFailed(f"{path}: corrupt checkpoint ({wrong[1:]} is not what it must be)")


def check_master_state(path: Path, state: Any, generation: int, epoch: int, group_count: int) -> None:
    """Check the master's part. RunFailed, with file and key, when it is malformed, or of another run or checkpoint."""
    wrong = first_mismatch(_MASTER, state)
    if wrong is None:
        if state["master"]["epoch"] != epoch:
            wrong = ".master.epoch"
        elif state["master"]["generation"] != generation + 1:
            wrong = ".master.generation"
        for controller in [state["controller"], *state.get("more_stages", [])]:
            wrong = wrong or _wrong_in_controller(controller, group_count)
    if wrong is not None:
        raise RunFailed(f"{path}: corrupt checkpoint (master.state{wrong} is not what it must be)")


def _wrong_in_controller(controller: Any, group_count: int) -> str | None:
    """The key that contradicts others; None if there is none."""
    active, owner = controller["active"], controller["owner"]
    members = [*active, *controller["emptying"], *owner]
    if not controller["history"]:
        return ".controller.history"
    if len(owner) != group_count or any(s >= controller["slaves"] for s in members) or not active:
        return ".controller"
    return None if len(set(active)) == len(active) and set(owner) <= set(active) else ".controller.active"


def check_gateway_state(path: Path, number: int, state: Any, epoch: int, group_count: int, stream_count: int) -> None:
    """Check a gateway's part. RunFailed, with file and key, when it is malformed, or of another run or checkpoint."""
    wrong = first_mismatch(_GATEWAY, state)
    if wrong is None:
        if state["gateway"]["epoch"] != epoch:
            wrong = ".gateway.epoch"
        elif any(len(counts) != group_count for counts in state["overload"]["by_group"]):
            wrong = ".overload.by_group"
        elif len(state["streams"]) != stream_count:
            wrong = ".streams"
        elif len(state.get("splits", state["streams"])) != stream_count:
            wrong = ".splits"
    if wrong is not None:
        raise RunFailed(f"{path}: corrupt checkpoint (gateways[{number}].state{wrong} is not what it must be)")


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """RunFailed, with the file, when a role cannot be restored from a checkpoint."""
    try:
        yield
    except RunFailed as error:
        text = str(error)
        raise error if str(path.parent) in text else RunFailed(f"{path}: {text}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        text = " ".join(str(error).split())[:300]
        raise RunFailed(f"{path}: corrupt checkpoint ({type(error).__name__}: {text})") from None
