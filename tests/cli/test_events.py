"""`swjoin events`: every kind of event as a line, the closing lines, what it refuses; and pipes whose reader has gone."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from swjoin.cli.events import KINDS, closing, read_events, select, timeline
from swjoin.cli.main import build_parser
from swjoin.cli.summary import duration_text, size_text, summary_rows
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.connectors.files.run_files import EventsFile
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.support.stored_runs import a_run, write_events

EVENTS = [
    RunEvent(8_250_000, 32, "occupancy", slave=0, amount=0.615, duration_us=412_000, text="supplier"),
    RunEvent(8_250_000, 32, "occupancy", slave=1, amount=0.0, text="consumer"),
    RunEvent(8_250_000, 32, "activated", slave=3, amount=3.0),
    RunEvent(8_250_000, 32, "decided", slave=0, peer=3, group=40, state_bytes=9, amount=7.0, text="it is full"),
    RunEvent(8_250_000, 32, "held", slave=0, peer=3, group=40, amount=7.0),
    RunEvent(8_281_000, 32, "left", 0, 3, 40, tuples=3516, state_bytes=257_000, duration_us=131_400, amount=7.0),
    RunEvent(8_290_000, 32, "installed", 3, 0, 40, tuples=3516, state_bytes=257_000, duration_us=9_400, amount=7.0),
    RunEvent(8_625_000, 33, "released", 0, 3, 40, tuples=67, state_bytes=257_000, duration_us=375_000, amount=7.0),
    RunEvent(16_250_000, 64, "occupancy", slave=0, amount=0.02, text="neutral"),
    RunEvent(16_250_000, 64, "occupancy", slave=1, amount=0.0, text="consumer"),
    RunEvent(16_250_000, 64, "occupancy", slave=3, amount=0.0, text="emptying"),
    RunEvent(16_250_000, 64, "emptying", slave=3, amount=3.0),
    RunEvent(16_250_000, 64, "kept", slave=3, amount=3.0),
    RunEvent(16_500_000, 65, "rested", slave=1, amount=1.0),
    RunEvent(16_590_000, 65, "checkpoint", duration_us=40_000, amount=3.0),
    RunEvent(16_600_000, 65, "shed", tuples=1200, state_bytes=51_200),
    RunEvent(16_700_000, 65, "spilled", tuples=900, state_bytes=40_960, amount=2_097_152.0),
    RunEvent(16_800_000, 65, "idle", text="left"),
    RunEvent(16_900_000, 65, "speaks", text="left"),
    RunEvent(17_000_000, 66, "recovered", tuples=8120, duration_us=51_300, amount=2.0, text="2 slaves are left"),
    RunEvent(17_100_000, 67, "key_copied", group=5, text="key 7", stage=0),
    RunEvent(17_200_000, 68, "key_dealt", group=5, text="key 7", stage=0),
    RunEvent(17_300_000, 69, "key_gathered", group=5, text="key 7", stage=0),
    RunEvent(17_400_000, 70, "unit_opened", group=2, text="left, 2 to 3 units at 0.84 of their memory", stage=0),
    RunEvent(17_500_000, 71, "unit_closing", group=7, text="right, 4 to 3 units at 0.26 of their memory", stage=0),
    RunEvent(17_600_000, 72, "unit_closed", group=7, text="right", stage=0),
    RunEvent(17_700_000, 73, "placed", amount=4.5, text="80.1 % of the bytes between stages are between ranks, 4.5 % expected"),
    RunEvent(17_700_000, 73, "regret", amount=75.64, text="points above the best placement for the last reorganization epoch"),
    RunEvent(17_800_000, 74, "query_added", duration_us=350_000, amount=17.654321, text="far"),
    RunEvent(17_800_000, 74, "query_dropped", duration_us=350_000, amount=17.654321, text="long"),
]
LINES = """\
 8.250 s  epoch 32  occupancy: slave 0 0.61 supplier (412 ms joining), slave 1 0.00 consumer
 8.250 s  epoch 32  slave 3 is activated; 3 active slaves from now on
 8.250 s  epoch 32  slave 0 yields partition-group 40 to slave 3 (move 7): it is full
 8.250 s  epoch 32      group 40  move 7: held
 8.281 s  epoch 32      group 40  move 7: left slave 0: 3,516 tuples, 251 KiB, 131 ms
 8.290 s  epoch 32      group 40  move 7: installed at slave 3: 3,516 tuples, 251 KiB, 9.4 ms
 8.625 s  epoch 33      group 40  move 7: released after 375 ms; 67 tuples had been held back
16.250 s  epoch 64  occupancy: slave 0 0.02 neutral, slave 1 0.00 consumer, slave 3 0.00 emptying
16.250 s  epoch 64  slave 3 is to rest and yields all its partition-groups; 3 active slaves until then
16.250 s  epoch 64  slave 3 is not to rest after all; 3 active slaves
16.500 s  epoch 65  slave 1 rests; 1 active slave from now on
16.590 s  epoch 65  checkpoint 3 is durable, 40 ms after its cut
16.600 s  epoch 65  full mini-buffers: 1,200 tuples are shed, 50 KiB
16.700 s  epoch 65  full mini-buffers: 900 tuples go to disk, 40 KiB; 2.0 MiB lie there now
16.800 s  epoch 65  left has been silent for the idle timeout; time goes on without it
16.900 s  epoch 65  left speaks again
17.000 s  epoch 66  recovered in 51 ms: 2 slaves are left, 8,120 tuples are joined once more
17.100 s  epoch 67  stage 0: key 7 of partition-group 5 is hot, rows of one side are copied to all instances
17.200 s  epoch 68  stage 0: key 7 of partition-group 5 is hot, rows of the other side are dealt to all instances
17.300 s  epoch 69  stage 0: key 7 of partition-group 5 has cooled down, its rows are dealt no longer
17.400 s  epoch 70  stage 0: unit 2 (left, 2 to 3 units at 0.84 of their memory) stores rows from now on
17.500 s  epoch 71  stage 0: unit 7 (right, 4 to 3 units at 0.26 of their memory) stores no more rows, and is probed until its \
own have expired
17.600 s  epoch 72  stage 0: unit 7 (right) is empty, and probed no longer
17.700 s  epoch 73  placement: 80.1 % of the bytes between stages are between ranks, 4.5 % expected
17.700 s  epoch 73  regret: 75.6 points above the best placement for the last reorganization epoch
17.800 s  epoch 74  query added: far, rows with times from 17.654321 s, after a pause of 350 ms
17.800 s  epoch 74  query dropped: long, rows with times before 17.654321 s, after a pause of 350 ms
"""
END = """\
moves          1, 251 KiB
hold-back      p50 375 ms, p99 375 ms, max 375 ms
active slaves  1 to 3
"""


def test_events_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    first = EventsFile(tmp_path)
    for event in EVENTS[:3]:
        first.add(event)
    lines = tmp_path / "metrics" / ".events.jsonl"
    with lines.open("a") as torn:
        torn.write('{"time_us": 1, "epo')
    second = EventsFile(tmp_path, resumes=True)  # the first is never closed
    second.add(EVENTS[3])
    second.close(resumable=True)
    third = EventsFile(tmp_path, resumes=True)
    third.add(EVENTS[4])
    third.close()
    found = pq.read_table(tmp_path / "metrics" / "events.parquet").to_pylist()
    assert found == [dataclasses.asdict(event) for event in EVENTS[:5]]
    assert not lines.exists()


def test_every_kind_is_a_line(swjoin: Any, tmp_path: Path) -> None:
    write_events(tmp_path, EVENTS)
    done = swjoin("events", tmp_path)
    assert (done.code, done.err) == (0, [])
    assert done.out == f"{LINES}\n{END}"
    assert {e.kind for e in EVENTS} == set(KINDS)


def test_the_parser_names_every_kind() -> None:
    commands: Any = next(a for a in build_parser()._actions if a.dest == "command").choices
    (option,) = (a for a in commands["events"]._actions if a.dest == "kinds")
    assert str(option.help).startswith(", ".join(KINDS))


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--kind", "held", "released"], [3, 6]),
        (["--kind", "held", "--kind", "rested"], [3, 10]),
        (["--slave", "3", "--kind", "decided", "emptying"], [2, 8]),
        (["--group", "40"], [2, 3, 4, 5, 6]),
        (["--group", "40", "--kind", "left", "--slave", "0"], [4]),
    ],
)
def test_choosing(argv: list[str], shown: list[int], swjoin: Any, tmp_path: Path) -> None:
    write_events(tmp_path, EVENTS)
    lines = LINES.splitlines()
    done = swjoin("events", tmp_path, *argv)
    assert done.code == 0
    head, end = done.out.split("\nwhole run:\n")
    assert head.splitlines() == [lines[i] for i in shown]
    assert end == END


def test_one_slave_with_its_occupancies_only(swjoin: Any, tmp_path: Path) -> None:
    write_events(tmp_path, EVENTS)
    lines = swjoin("events", tmp_path, "--slave", "3").out.splitlines()
    assert lines[:6] == LINES.splitlines()[1:7]
    assert lines[6] == "16.250 s  epoch 64  occupancy: slave 3 0.00 emptying"
    assert lines[7:9] == LINES.splitlines()[8:10]
    assert lines[9] == ""


def test_nothing_chosen(swjoin: Any, tmp_path: Path) -> None:
    write_events(tmp_path, EVENTS)
    done = swjoin("events", tmp_path, "--group", "41")
    assert (done.code, done.out) == (0, f"no such events\nwhole run:\n{END}")


def test_what_it_refuses(swjoin: Any, tmp_path: Path) -> None:
    def refused(*argv: object) -> str:
        done = swjoin("events", *argv)
        assert (done.code, done.out, len(done.err)) == (2, "", 1)
        return str(done.err[0])

    assert "holds no metrics/events.parquet" in refused(tmp_path)
    assert "holds no metrics/events.parquet" in refused(tmp_path / "none")
    write_events(tmp_path, [])
    assert "this run has no events" in refused(tmp_path)
    write_events(tmp_path, EVENTS)
    assert "did you mean released?" in refused(tmp_path, "--kind", "release")
    assert "one of occupancy, decided" in refused(tmp_path, "--kind", "xyz")
    (tmp_path / "metrics" / "events.parquet").write_text("not parquet")
    assert "events.parquet: cannot be read" in refused(tmp_path)
    with pytest.raises(UserError):
        select(EVENTS, ["nothing"])


def test_in_colours_on_a_terminal(swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words with colours, never broken into lines, however narrow the terminal."""
    write_events(tmp_path, EVENTS)
    monkeypatch.setattr("swjoin.cli.events.on_terminal", lambda: True)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "40")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    done = swjoin("events", tmp_path)
    assert "\x1b[" in done.out
    assert re.sub(r"\x1b\[[\d;]*m", "", done.out) == f"{LINES}\n{END}"


def test_moves_that_did_not_come_to_an_end_and_unknown_kinds() -> None:
    assert closing(EVENTS[:6]) == [("moves", "0; 1 more did not come to an end"), ("active slaves", "2 to 3")]
    assert closing(EVENTS[:2]) == [("moves", "0"), ("active slaves", "2 throughout")]
    (line,) = timeline([RunEvent(1, 0, "split", slave=2, text="in three")])
    assert line.text == "split slave 2 in three"


def test_the_stages_of_a_plan(tmp_path: Path) -> None:
    found = [
        RunEvent(1, 0, "occupancy", slave=0, amount=0.5, text="neutral", stage=0),
        RunEvent(1, 0, "occupancy", slave=2, amount=0.5, text="neutral", stage=1),
        RunEvent(1, 0, "occupancy", slave=3, amount=0.2, text="consumer", stage=1),
        RunEvent(2, 0, "decided", slave=2, peer=3, group=5, amount=7, stage=1),
        RunEvent(3, 1, "released", slave=2, peer=3, group=5, duration_us=4000, state_bytes=2048, amount=7, stage=1),
        RunEvent(4, 1, "checkpoint", duration_us=1000),
    ]
    write_events(tmp_path, found)
    assert read_events(tmp_path) == found
    assert [line.text for line in timeline(found)] == [
        "stage 0: occupancy: slave 0 0.50 neutral",
        "stage 1: occupancy: slave 2 0.50 neutral, slave 3 0.20 consumer",
        "stage 1: slave 2 yields partition-group 5 to slave 3 (move 7)",
        "    stage 1: group 5  move 7: released after 4.0 ms",
        "checkpoint 0 is durable, 1.0 ms after its cut",
    ]
    assert closing(found)[-1] == ("active slaves", "1 to 2")
    path = tmp_path / "metrics" / "events.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["stage"]), path)
    assert {event.stage for event in read_events(tmp_path)} == {-1}, "as earlier versions wrote them"


def test_numbers_and_units() -> None:
    assert [size_text(n) for n in (0, 1500, 10 << 10, (1 << 20) - 1, 1 << 20, 3 << 30)] == [
        "0.0 KiB",
        "1.5 KiB",
        "10 KiB",
        "1,024 KiB",
        "1.0 MiB",
        "3,072.0 MiB",
    ]
    assert [duration_text(us) for us in (0, 49, 9_949, 9_950, 2_500_000)] == ["0.0 ms", "0.0 ms", "9.9 ms", "10 ms", "2,500 ms"]


def test_a_real_run_tells_the_same_in_every_place(swjoin: Any, tmp_path: Path) -> None:
    report = a_run(tmp_path, declustering="adaptive")
    events = read_events(tmp_path)
    moved = sum(e.kind == "released" for e in events)
    assert moved == sum(e.kind == "decided" for e in events) == report["moves"] > 5
    done = swjoin("events", tmp_path)
    assert (done.code, done.err) == (0, [])
    end = dict(closing(events))
    assert all(f"{name:<15}{value}" in done.out for name, value in end.items())
    assert all(re.match(r" *\d+\.\d{3} s  epoch \d+ +\S", line) for line in done.out.split("\n\n")[0].splitlines())
    active = {entry["active_slaves"] for entry in report["declustering"]}
    assert end["active slaves"] == (f"{min(active)} to {max(active)}" if len(active) > 1 else f"{min(active)} throughout")
    report["declustering"] = [{"active_slaves": n} for n in (6, 5, 4, 5)]
    rows = dict(summary_rows(report, Job(config_from_plain(report["config"]), None, True, tmp_path, None, "")))
    size = size_text(report["movement"]["state_bytes"])
    assert end["moves"] == f"{moved}, {size}"
    held = dict(re.findall(r"(p50|p99) ([\d.,]+ ms)", end["hold-back"]))
    assert rows["moves"] == f"{moved}, {size}, held back {held['p50']} (p50), {held['p99']} (p99)"
    assert rows["active slaves"] == "6 to 5 (3 changes, lowest 4, highest 6)"


def test_a_run_that_does_not_adapt_has_no_rows_about_it(tmp_path: Path) -> None:
    report = a_run(tmp_path, policy="none")
    rows = dict(summary_rows(report, Job(config_from_plain(report["config"]), None, True, tmp_path, None, "")))
    assert not {"moves", "active slaves"} & set(rows)
    with pytest.raises(UserError, match="has no events"):
        read_events(tmp_path)


# ---------------------------------------------------------------- pipes


def _unread(*argv: object) -> subprocess.CompletedProcess[str]:
    """A swjoin process whose standard output nobody reads, as that of `swjoin ... | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "swjoin", *map(str, argv)]
        return subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
        )
    finally:
        os.close(writer)


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    write_events(tmp_path, EVENTS * 1000)
    for argv in (["events", tmp_path], ["events", tmp_path, "--debug"], ["--version"], ["--help"], ["run", "--help"]):
        done = _unread(*argv)
        assert done.stderr == "", argv
        # argparse may keep quiet about it when it prints help
        assert done.returncode in ((0, 141) if "--help" in argv else (141,)), argv
    assert _unread("events", tmp_path / "none").returncode == 2


def test_a_run_whose_summary_nobody_reads_is_complete(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "join: {within: 10ms}\nworkload: {rate: 900, duration: 1s}\nsink: {kind: count}\ncluster: {distribution_epoch: 100ms}\n"
    )
    done = _unread("run", tmp_path / "c.yaml", "--threads", "1", "--out", tmp_path / "run")
    assert (done.returncode, done.stderr) == (141, "")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["complete"]


def test_other_broken_pipes_are_errors(swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError("a socket")

    monkeypatch.setattr("swjoin.cli.events.print_timeline", broken)
    done = swjoin("events", tmp_path)
    assert (done.code, done.err) == (1, ["swjoin: internal error: BrokenPipeError: a socket (--debug shows where)"])
