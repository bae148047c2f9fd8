"""`swjoin COMMAND --help`: options in named groups, each with a text, and examples, each of which is run."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.cli.help_pages import EXAMPLES, GROUPS, MESSAGES
from swjoin.cli.main import build_parser
from tests.support.limits import LONG_S, PROCESS_S

COMMANDS = {
    name: parser
    for action in build_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
    for name, parser in action.choices.items()
    if name[0] != "_"
}
LIVE = ("serve", "push", "tail", "top", "queries")  # run together
SPARK = ("generate", "verify", "aggregate")
LONG = ("swjoin calibrate", "swjoin generate --rate 1000 --duration 1min", "swjoin sweep experiments/main.yaml --only 1")
MPI = (" -n ", "swjoin doctor", "swjoin sweep experiments/main.yaml --only")
FILES = {
    "trips.csv": "user,started,km\n1,2026-01-01 00:00:00,3.5\n2,2026-01-01 00:20:00,8\n1,2026-01-01 02:00:00,1.5\n",
    "payments.csv": "user,paid,eur\n1,2026-01-01 00:30:00,7.25\n2,2026-01-01 01:10:00,15\n2,2026-01-01 04:00:00,3.5\n",
    "paid.sql": (
        "SELECT t.user, p.eur FROM t JOIN p\nON t.user = p.user AND p.paid BETWEEN t.started AND t.started + INTERVAL 1 HOUR\n"
    ),
    "long.sql": "SELECT user, km FROM t WHERE km > 3",
    "far.sql": "SELECT user, km FROM t WHERE km > 8",
    "rare.sql": "SELECT window_end, user, max(eur) AS most FROM TUMBLE(p, paid, INTERVAL 1 HOUR) GROUP BY window_end, user",
    "night.yaml": (
        "queries:\n"
        "  - {name: long, sql: 'SELECT user, km FROM t WHERE km > 3'}\n"
        "  - {name: big, sql: 'SELECT user FROM p WHERE eur > 9'}\n"
        "inputs:\n"
        "  t: {watch: trips, time: started, schema: 'user: int64, started: timestamp[us], km: double'}\n"
        "  p: {watch: payments, time: paid, schema: 'user: int64, paid: timestamp[us], eur: double'}\n"
        "time: {late: drop}\ncluster: {distribution_epoch: 100ms}\ncheckpoint: {interval: 1s}\n"
    ),
    **dict.fromkeys(
        ("traffic.json", "monday.json", "tuesday.json"),
        '{"tasks": [{"id": 1, "work": 5}, {"id": 2, "work": 5}, {"id": 3, "work": 9}], '
        '"edges": [[1, 2, 5, 320], [2, 3, 1, 64]]}',
    ),
    "likes.rq": (
        "PREFIX ex: <http://example.org/>\n"
        "SELECT ?author ?fan ?post WHERE {\n"
        "  STREAM ex:posts [RANGE 1m] { ?author ex:wrote ?post }\n"
        "  STREAM ex:likes [RANGE 10s] { ?fan ex:likes ?post }\n"
        "  ?fan ex:knows ?author .\n"
        "}\n"
    ),
    "posts.txt": (
        "0 <http://example.org/ann> <http://example.org/wrote> <http://example.org/post1> .\n"
        "2000000 <http://example.org/ben> <http://example.org/wrote> <http://example.org/post2> .\n"
    ),
    "likes.txt": (
        "1500000 <http://example.org/ben> <http://example.org/likes> <http://example.org/post1> .\n"
        "3000000 <http://example.org/cid> <http://example.org/likes> <http://example.org/post2> .\n"
        "9000000 <http://example.org/cid> <http://example.org/likes> <http://example.org/post1> .\n"
    ),
    "people.ttl": ("@prefix ex: <http://example.org/> .\nex:ben ex:knows ex:ann .\nex:cid ex:knows ex:ben .\n"),
    "live.yaml": (
        "join: {on: user, left_time: started, right_time: paid, within: 1h}\n"
        "left: {flight: {}, schema: 'user: int64, started: timestamp[us], km: double'}\n"
        "right: {flight: {}, schema: 'user: int64, paid: timestamp[us], eur: double'}\n"
        "cluster: {distribution_epoch: 100ms}\ncheckpoint: {interval: 1s}\n"
    ),
}


def test_every_command_has_examples_and_every_option_a_text() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    for name, parser in COMMANDS.items():
        assert all(example.startswith(f"swjoin {name} ") or example == f"swjoin {name}" for example in EXAMPLES[name])
        assert [a.option_strings or a.dest for a in parser._actions if not a.help] == []
        text = parser.format_help()
        assert text.endswith("examples:\n" + "".join(f"  {example}\n" for example in EXAMPLES[name]))


def test_groups_name_options_that_exist_once_and_leave_none_out() -> None:
    for name, groups in GROUPS.items():
        parser = COMMANDS[name]
        grouped = [option for options in (*groups.values(), MESSAGES) for option in options.split()]
        assert len(set(grouped)) == len(grouped)
        shown = [action for group in parser._action_groups for action in group._group_actions]
        assert len(shown) == len(parser._actions)
        assert set(map(id, shown)) == set(map(id, parser._actions))
        rest = {option for a in parser._actions for option in a.option_strings} - set(grouped)
        assert rest == {"-h", "--help", "--verbose", "--quiet"}, f"{name}: put {rest} into a group of swjoin/cli/help_pages.py"
        titles = re.findall(r"(?m)^([a-z][a-z ]+):$", parser.format_help())
        assert titles[-len(groups) - 3 :] == [*groups, "messages", "other options", "examples"]


# ---------------------------------------------------------------- the examples


def run(example: str, folder: Path, *, seconds: float = PROCESS_S) -> str:
    """Its standard output."""
    command, _, file = example.replace("\\\n", " ").partition(" > ")
    program, *argv = shlex.split(command)
    assert program == "swjoin"
    line = [sys.executable, "-m", "swjoin", *argv]
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, check=False, cwd=folder)
    assert not file or done.stdout
    assert done.returncode == 0, f"{example}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the examples, and with a finished run as runs/first and as runs/latest."""
    folder = tmp_path_factory.mktemp("examples")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    small = "--set workload.rate=1000 --set workload.duration=3s --set checkpoint.epochs=2"
    run(f"swjoin run mpi_configs/local.yaml {small} --out runs/first", folder)
    (folder / "runs" / "latest").symlink_to("first")
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "copy", symlinks=True))


def marked(example: str) -> Any:
    long = [pytest.mark.long] if example.startswith(LONG) else []
    mpi = [pytest.mark.mpi, pytest.mark.drawn] if any(part in example for part in MPI) and " -n 6" not in example else []
    spark = [pytest.mark.spark] if example.split()[1] in SPARK else []
    return pytest.param(example, marks=[*long, *mpi, *spark], id=" ".join(example.split()))


@pytest.mark.drawn
@pytest.mark.parametrize("example", [marked(line) for name, lines in EXAMPLES.items() if name not in LIVE for line in lines])
def test_an_example_runs(example: str, folder: Path) -> None:
    if "--out runs/first" in example:
        shutil.rmtree(folder / "runs")
    out = run(example, folder, seconds=LONG_S)
    for written in re.findall(r"(?:-o|--out|--report) (?!count|- )(\S+)", example):
        assert (folder / written).exists()
    assert out.strip() or "--json" not in example


def test_the_examples_of_a_live_run_work_together(folder: Path) -> None:
    """Both ways to start the run, each in a folder of its own; then the clients' examples, one after the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])  # 8815 may be taken
    clients = [example.replace("8815", port) for name in ("push", "top", "tail") for example in EXAMPLES[name]]
    for i, serve in enumerate(EXAMPLES["serve"]):
        here = Path(shutil.copytree(folder, folder.parent / f"live-{i}", symlinks=True))
        config = here / "live.yaml"
        config.write_text(config.read_text() + f"serve: {{listen: '127.0.0.1:{port}'}}\n")
        argv = [sys.executable, "-m", "swjoin", *shlex.split(serve.replace("8815", port))[1:]]
        with subprocess.Popen(argv, cwd=here, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                while "listening" not in (line := server.stdout.readline()):
                    assert line, "the run has ended"
                for example in clients:
                    if "-o " not in example and ("runs/live" not in example or "runs/live" in serve):
                        assert run(example, here), example
                with ThreadPoolExecutor() as pool:  # of those that follow the results to their end
                    following = [pool.submit(run, example, here) for example in clients if "-o " in example]
                    until_s = time.monotonic() + PROCESS_S
                    while not any((here / "results").glob("*.parquet")) and time.monotonic() < until_s:
                        time.sleep(0.05)
                    with api.connect(f"grpc://127.0.0.1:{port}") as client:
                        client.end("left")
                        client.end("right")
                    for future in following:
                        future.result()
                assert server.wait(PROCESS_S) == 0
                assert sum(pq.read_table(path).num_rows for path in (here / "results").glob("*.parquet")) == 2
            finally:
                server.kill()


def test_the_examples_of_queries_that_come_and_go(folder: Path) -> None:
    for name in ("trips", "payments"):
        (folder / name).mkdir()
    argv = [sys.executable, "-m", "swjoin", "run", "night.yaml", "--out", "runs/night"]
    with subprocess.Popen(argv, cwd=folder) as going:
        try:
            while not (folder / "runs" / "night" / "queries" / "open.json").exists():
                assert going.poll() is None
                time.sleep(0.05)
            out = [run(example, folder, seconds=LONG_S) for example in EXAMPLES["queries"]]
            assert out[1].startswith("far, rare: rows with times from ")
            assert out[2].startswith("long: rows with times before ")
            for name in ("trips", "payments"):
                (folder / name / "_END").touch()
            assert going.wait(PROCESS_S) == 0
        finally:
            going.kill()
    assert [line.split()[0] for line in run(EXAMPLES["queries"][0], folder).splitlines()] == [
        "query",
        "long",
        "big",
        "far",
        "rare",
    ]
