"""Values that mean nothing are refused in one line: empty paths, counts below one, options that contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import swjoin as sj
from swjoin.cli.main import build_parser
from tests.support.small_files import PLAIN, TIMES, config, state

EMPTY = {
    "join '' b.csv": ["join", "", "b.csv", *TIMES, "--within", "1s", "-o", "count"],
    "join -o ''": ["join", "a.csv", "b.csv", *TIMES, "--within", "1s", "-o", ""],
    "join --report ''": ["join", "a.csv", "b.csv", *TIMES, "--within", "1s", "-o", "count", "--report", ""],
    "query ''": ["query", "", "--table", "t=a.csv:ts", "-o", "count"],
    "query --table ''": ["query", "SELECT k FROM t", "--table", "", "-o", "count"],
    "run ''": ["run", ""],
    "run --out ''": ["run", "config.yaml", "--out", ""],
    "run --out=": ["run", "config.yaml", "--out="],
    "run --resume ''": ["run", "--resume", ""],
    "run --hostfile ''": ["run", "config.yaml", "-n", "3", "--hostfile", ""],
    "serve --out ''": ["serve", "config.yaml", "--out", ""],
    "push FILE ''": ["push", "grpc://127.0.0.1:1", "left", ""],
    "push ''": ["push", "", "left", "a.csv"],
    "tail -o ''": ["tail", "grpc://127.0.0.1:1", "-o", ""],
    "tail --token-file ''": ["tail", "grpc://127.0.0.1:1", "--token-file", ""],
    "generate -o ''": ["generate", "--rate", "10", "--duration", "1s", "-o", ""],
    "verify ''": ["verify", ""],
    "aggregate a ''": ["aggregate", "a", ""],
    "events ''": ["events", ""],
    "top ''": ["top", ""],
    "plot ''": ["plot", ""],
    "plot --sweep ''": ["plot", "experiment.yaml", "--sweep", ""],
    "sweep ''": ["sweep", ""],
    "sweep --out ''": ["sweep", "experiment.yaml", "--out", ""],
    "simulate ''": ["simulate", "", "--slaves", "2"],
    "simulate --out ''": ["simulate", "config.yaml", "--slaves", "2", "--out", ""],
    "plan ''": ["plan", ""],
    "rdf ''": ["rdf", "", "--stream", "x:s=a.txt", "-o", "count"],
    "rdf --stream ''": ["rdf", "SELECT ?a { }", "--stream", "", "-o", "count"],
    "rdf --static ''": ["rdf", "SELECT ?a { }", "--stream", "x:s=a.txt", "--static", "", "-o", "count"],
    "queries ''": ["queries", ""],
    "queries add ''": ["queries", "run", "add", ""],
    "queries drop ''": ["queries", "run", "drop", ""],
    "place ''": ["place", "", "-k", "2"],
    "place --history ''": ["place", "graph.json", "-k", "2", "--history", ""],
    "explain ''": ["explain", ""],
    "init ''": ["init", ""],
    "report ''": ["report", ""],
    "report -o ''": ["report", "run", "-o", ""],
    "calibrate -o ''": ["calibrate", "-o", ""],
    "doctor --dir ''": ["doctor", "--dir", ""],
}
TAIL = ["tail", "grpc://127.0.0.1:1"]
REFUSED = {
    "tail --count 0": ([*TAIL, "--count", "0"], "--count 0: must be at least 1"),
    "tail --count -3": ([*TAIL, "--count", "-3"], "--count -3: must be at least 1"),
    "tail -o --count": ([*TAIL, "-o", "folder", "--count", "3"], "--count: not with -o"),
    "tail -o --from": ([*TAIL, "-o", "folder", "--from", "start"], "--from: not with -o"),
    "tail -o --from now": ([*TAIL, "-o", "folder", "--from", "now"], "--from: not with -o"),
    "tail metrics --from": ([*TAIL, "metrics", "--from", "start", "--final"], "--from: is for results"),
    "tail late --final": ([*TAIL, "late", "--final"], "--final: is for results"),
    "tail nowhere": (["tail", "nowhere"], "grpc://nowhere: is no address of a run; write grpc://HOST:PORT"),
    "simulate --limit -5s": (["simulate", "config.yaml", "--slaves", "2", "--limit", "-5s"], "--limit -5s: must be above 0"),
    "simulate --limit 0s": (["simulate", "config.yaml", "--slaves", "2", "--limit", "0s"], "--limit 0s: must be above 0"),
    "generate --seed -1": (["generate", "--rate", "10", "--duration", "1s", "--seed", "-1", "-o", "out"], "--seed -1: must be"),
    "explain --set sink=": (["explain", "config.yaml", "--set", "sink="], "--set 'sink=': the value is missing"),
    "explain --set ...rate= ": (["explain", "config.yaml", "--set", "workload.rate= "], "the value is missing"),
    "explain --set .nan": (
        ["explain", "config.yaml", "--set", "workload.rate=.nan"],
        "--set 'workload.rate=.nan': the value is not what can be used here: nan is no finite number",
    ),
    "explain --set [.nan]": (
        ["explain", "config.yaml", "--set", "nodes.node_speed=[.nan]"],
        "the value is not what can be used here: 0: nan is no finite number",
    ),
    "explain --set left.path": (["explain", "config.yaml", "--set", "left.path=''"], "left.path: the path is empty"),
    "explain --set directory": (
        ["explain", "config.yaml", "--set", 'checkpoint.directory=""'],
        "checkpoint.directory: the path",
    ),
}


@pytest.mark.parametrize("argv", EMPTY.values(), ids=EMPTY)
def test_empty_values_are_refused(argv: list[str], swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path)
    before = state(tmp_path)
    done = swjoin(*argv)
    assert (done.code, done.out, len(done.err)) == (2, "", 1), done.err
    assert ": the value is empty (see swjoin " in done.err[0]
    assert state(tmp_path) == before


def test_every_command_is_among_them() -> None:
    commands = next(action.choices for action in build_parser()._actions if action.dest == "command")
    assert commands is not None
    without_paths = {"schema", "completion", "kernels"}
    assert {argv[0] for argv in EMPTY.values()} == {name for name in commands if name[0] != "_"} - without_paths


@pytest.mark.parametrize(("argv", "said"), REFUSED.values(), ids=REFUSED)
def test_nonsense_is_refused(argv: list[str], said: str, swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path)
    before = state(tmp_path)
    done = swjoin(*argv)
    assert (done.code, done.out, len(done.err)) == (2, "", 1), done.err
    assert said in done.err[0]
    assert state(tmp_path) == before


def test_so_it_is_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (lambda: sj.run(PLAIN, out=""), lambda: sj.run(""), lambda: sj.Run.open("")):
        with pytest.raises(sj.UserError, match=r"the path is empty; write \. for the working directory"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address", ["foo", "", "grpc://", "grpc://host", "grpc://:8815", "host:", "host:port", "h:1/x", None, 8815]
)
def test_addresses_without_a_host_or_a_port_are_refused(address: Any) -> None:
    with pytest.raises(sj.UserError, match="is no address") as refused:
        sj.connect(address)
    assert "\n" not in str(refused.value)
    for good in ("127.0.0.1:8815", "grpc://localhost:8815", "grpc://[::1]:8815", "localhost:1/"):
        with sj.connect(good):
            pass
