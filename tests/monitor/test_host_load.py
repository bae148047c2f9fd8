"""When a run's machine counts as overloaded: the verdict over what the ranks of each host measured.

The meters themselves are in tests/cluster/test_measuring.py, which runs with nothing beside it."""

from __future__ import annotations

from typing import Any

import pytest

from swjoin.monitor.host_load import machine_report


def part(**changes: Any) -> dict[str, Any]:
    times = [10.0, 90.0, 0.0, -1.0]  # busy, idle, stolen, waiting
    late = {"p50": 0.0001, "p99": 0.001, "max": 0.002}
    return {
        "host": "a",
        "cores_of": "k",
        "cores": 2,
        "elapsed_s": 50.0,
        "cpu_s": 5.0,
        "times_s": times,
        "late_s": late,
    } | changes


def verdict(master: dict[str, Any], other: dict[str, Any], slot_us: int = 200_000, imitates: bool = True) -> list[str]:
    report = machine_report(master, [other], slot_us=slot_us, imitates=imitates)
    assert report["overloaded"] == bool(report["reasons"])
    reasons: list[str] = report["reasons"]
    return reasons


def test_a_quiet_machine_is_not_overloaded() -> None:
    assert verdict(part(), part()) == []
    report = machine_report(part(), [part()], slot_us=1, imitates=True)["hosts"]["a"]
    assert (report["busy_ratio"], report["foreign_ratio"], report["waiting_ratio"]) == (0.1, 0.0, None)


def test_hosts_that_share_cores_are_no_strangers_to_each_other() -> None:
    """Namespaces and containers: what one does is not the work of other processes for the other."""
    busy = part(times_s=[40.0, 60.0, 0.0, 1.0], cpu_s=20.0)
    report = machine_report(busy, [busy | {"host": "b"}], slot_us=1, imitates=False)
    assert (report["reasons"], list(report["hosts"])) == ([], ["a"])
    apart = machine_report(busy, [busy | {"host": "b", "cores_of": "other"}], slot_us=1, imitates=False)
    assert [reason[:6] for reason in apart["reasons"]] == ["a: 20%", "b: 20%"]
    alike = machine_report(busy, [part(cores_of="other")], slot_us=1, imitates=False)
    assert (list(alike["hosts"]), alike["overloaded"]) == (["a (1)", "a (2)"], True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"times_s": [10.0, 86.0, 4.0, 1.0]}, "4% of the cores stolen"),
        ({"times_s": [40.0, 60.0, 0.0, 1.0]}, "30% of the cores used by other processes"),
        ({"times_s": [95.0, 5.0, 0.0, 1.0], "cpu_s": 90.0}, "95% of the cores busy"),
        ({"times_s": [10.0, 90.0, 0.0, 20.0]}, "waited for a core in 40% of the time"),
        ({"late_s": {"p50": 0.0, "p99": 0.150, "max": 0.2}}, "late for its slots: p99 150.0 ms (limit 100.0 ms)"),
    ],
)
def test_each_sign_of_overload(change: dict[str, Any], said: str) -> None:
    reasons = verdict(part(**change), part(elapsed_s=1.0))
    assert len(reasons) == 1
    assert said in reasons[0]


def test_full_cores_are_no_overload_where_no_node_is_imitated_and_no_slot_is_due() -> None:
    busy = part(times_s=[99.0, 1.0, 0.0, 1.0], cpu_s=95.0, late_s=None)
    assert verdict(busy, part(elapsed_s=1.0), slot_us=0, imitates=False) == []


def test_hosts_are_judged_apart_and_short_runs_not_at_all() -> None:
    assert verdict(part(), part(host="b", cores_of="other", times_s=[50.0, 50.0, 0.0, 0.0]))[0].startswith("b: 45%")
    assert verdict(part(elapsed_s=0.1, times_s=[1.0, 0.0, 1.0, 0.0]), part(elapsed_s=0.1)) == []
