"""What `explain` says of plans of several stages, from the directory or the run.json of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swjoin.config.connectors import StreamConfig
from swjoin.config.sections import QueryConfig
from swjoin.plan.logical import IntervalJoin, Node, Result, Union
from swjoin.runtime.in_process import run_local
from tests.support.plan_runs import plan_job, write_streams

K = ("k",)
QUERY = QueryConfig(-20_000, 30_000, exclusive=("upper",), where="left_x <> right_x")
PLANS: dict[str, tuple[Node, ...]] = {
    "two joins": (
        IntervalJoin("j", "a", "b", K, K, QUERY),
        IntervalJoin("i", "j", "c", K, K, QueryConfig(0, 5_000_000, how="left"), "left"),
        Result("out", "i"),
    ),
    "union": (Union("u", ("a", "b")), IntervalJoin("j", "u", "c", K, K, QUERY, "min"), Result("out", "j")),
    "diamond": (
        IntervalJoin("j", "a", "b", K, K, QUERY),
        IntervalJoin("i", "a", "c", K, K, QUERY),
        IntervalJoin("top", "j", "i", K, K, QueryConfig(0, 0)),
        Result("out", "top"),
    ),
    "self-join": (IntervalJoin("s", "a", "a", ("k", "x"), ("k", "x"), QueryConfig(0, 0)), Result("out", "s")),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StreamConfig]:
    return write_streams(tmp_path_factory.mktemp("streams"), "abc", 200, 1, keys=5)


def read_by(nodes: tuple[Node, ...], inputs: dict[str, StreamConfig]) -> dict[str, StreamConfig]:
    return {name: config for name, config in inputs.items() if any(name in node.inputs for node in nodes)}


@pytest.fixture(scope="module")
def a_run(inputs: dict[str, StreamConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_local(plan_job(PLANS["two joins"], inputs, folder, cluster={"partition_count": 6, "strategy": "query"}), False, 1)
    return folder


def written(folder: Path, name: str, inputs: dict[str, StreamConfig]) -> Path:
    """The run.json of a run that has not been run."""
    job = plan_job(PLANS[name], read_by(PLANS[name], inputs), folder, "count")
    (folder / "run.json").write_text(json.dumps({"config": json.loads(job.to_json())["config"], **job.plan_keys}))
    return folder


def told(swjoin: Any, path: Path, *words: object) -> dict[str, Any]:
    done = swjoin("explain", path, "--json", *words)
    assert (done.code, done.err) == (0, [])
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_strategies_of_two_joins(a_run: Path, swjoin: Any) -> None:
    """What each costs, and where the stages are."""
    found = told(swjoin, a_run, "-n", 5, "--set", "cluster.strategy=subquery")
    way = "on the longest way"
    assert found["sections"]["strategy"] == [
        "subquery, marked * (set cluster.strategy).",
        f"  query: 2 stages on 3 slaves; 2 exchanges {way}, 15 channels, 9 out of a rank.",
        f"* subquery: 2 stages on 3 slaves; 1 exchange {way}, 15 channels, 9 out of a rank.",  # they partition alike
        f"  operator: 2 stages in 2 subclusters of 2 + 1 slaves; 1 exchange {way}, 2 channels, 1 out of a rank; 3 more from "
        "the gateways.",
    ]
    assert found["sections"]["edges"][2].startswith("edge 2: stage 0 -> stage 1 left, hash of k, as stage 0; carries")
    found = told(swjoin, a_run, "-n", 5, "--set", "cluster.strategy=operator")
    assert "stage 0 on ranks 2 to 3, stage 1 on rank 4:" in " ".join(found["sections"]["who does what"])
    assert "2 of stage 0, 1 of stage 1" in " ".join(found["sections"]["where keys go"])
    assert [line.split("stage 1  ")[-1] for line in found["diagram"] if "stage 1  " in line] == ["i x 1 on rank 4"]


def test_the_run_of_two_joins(a_run: Path, swjoin: Any) -> None:
    found = told(swjoin, a_run, "-n", 5)
    assert found == told(swjoin, a_run / "run.json", "-n", 5)
    said = found["sections"]
    assert found["diagram"][2].endswith("c.parquet ─┘")
    assert [line.split("  on ")[0] for line in found["diagram"][3:]] == [
        "",
        "edge 0  gateway, a ─ hash of k: v, x, ts                           ─▶ left  ─┬─ stage 0  j x 3 on ranks 2 to 4",
        "edge 1  gateway, b ─ hash of k: v, x, ts                           ─▶ right ─┘",
        "",
        "edge 2  stage 0, j ─ hash of k: left_v, left_x, left_ts, right_... ─▶ left  ─┬─ stage 1  i x 3 on ranks 2 to 4",
        "edge 3  gateway, c ─ hash of k: v, x, ts                           ─▶ right ─┘",
        "",
        "edge 4  stage 1, i ─ results                                       ─▶ 1 collector ─▶ results/*.parquet",
    ]
    assert said["stages"] == [
        "stage 0 j: inner join, -0.02 s <= right - left < 0.03 s, where left_x <> right_x; keys k = k; time of a row: the "
        "greater of both; watermark: min(left, right); routing: hash, as its condition has an equality.",
        "stage 1 i: left join, 0 s <= right - left <= 5 s; keys k = k; time of a row: the left one; alone, its own; "
        "watermark: min(left, right - 5s); routing: hash, as its condition has an equality.",
    ]
    assert said["edges"][2:] == [
        "edge 2: stage 0 -> stage 1 left, hash of k; carries id, time, key, left_v int64, left_x string, left_ts "
        "timestamp[us], right_v int64, right_x string, right_ts timestamp[us].",
        "edge 3: source c -> stage 1 right, hash of k; carries id, time, key, v int64, x string, ts timestamp[us].",
        "edge 4: stage 1 -> result out, any sink; result rows.",
    ]
    assert "what matches" not in said
    assert said["what comes in"][2].endswith("Time ts; row ids are positions.")
    assert "Ranks 2 to 4 play the instances: rank 2 + i instance i of every stage" in said["who does what"][1]
    assert "6 partition-groups" in said["where keys go"][0]
    assert "each of its senders (4 at most) 2 epochs and 8 parts" in said["memory"][1]
    names = [column["name"] for column in found["columns"]]
    assert names == json.loads((a_run / "run.json").read_text())["results"]["columns"]
    assert [len(found["plan"]["nodes"]), len(found["config"]["inputs"])] == [6, 3]


KV = QueryConfig(-200_000, 200_000)
CHAIN: tuple[Node, ...] = (
    IntervalJoin("j", "a", "b", K, K, KV),
    IntervalJoin("i", "j", "c", ("left_v",), ("v",), KV),
    Result("out", "i"),
)


def test_what_is_cut_of_a_run_and_of_one_placed_by_it(inputs: dict[str, StreamConfig], swjoin: Any, tmp_path: Path) -> None:
    """Joins by different keys. What is expected of a start by statistics is what that run then measures."""
    cluster = {"partition_count": 6, "strategy": "query"}
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    for folder in (earlier, later):
        folder.mkdir()
    run_local(plan_job(CHAIN, inputs, earlier, "count", cluster=cluster), False, 2)
    found = told(swjoin, earlier, "--threads", 2)
    (line,) = [line for line in found["diagram"] if line.startswith("edge 2 ")]
    (measured,) = re.findall(r"; (\d+) % between ranks|; (\d+)% between ranks", line)
    (said,) = found["sections"]["traffic"]
    assert said.startswith("Edge 2: of ")
    assert f"{float(said.split(', ')[1].split('%')[0]):.0f}" in measured
    (other,) = told(swjoin, earlier, "--threads", 3)["sections"]["traffic"]
    assert other == "What went between ranks was measured with other instances than these: 2 of stage 0, 2 of stage 1."
    words = ("--set", f"placement.statistics={earlier}", "--threads", 2)
    expected = told(swjoin, earlier, *words)
    (said,) = expected["sections"]["traffic"]
    placed, by_number = (float(share) for share in re.findall(r"([\d.]+)%", said))
    assert said.startswith("Stage 0 to stage 1: ")
    assert placed < by_number
    assert by_number == pytest.approx(float(measured[0] or measured[1]), abs=0.51)
    placement = {"statistics": str(earlier)}
    report = run_local(plan_job(CHAIN, inputs, later, "count", cluster=cluster, placement=placement), False, 2)
    ways = report["edges"][2]["traffic"]
    crossed, total = ways["in_host"]["bytes"], sum(way["bytes"] for way in ways.values())
    assert placed == pytest.approx(100 * crossed / total, abs=0.051)
    (said,) = told(swjoin, later, "--threads", 2)["sections"]["traffic"]
    assert said.startswith("Edge 2: of "), "measured, of a run that was placed by statistics"
    earlier.rename(tmp_path / "elsewhere")
    assert told(swjoin, later, "--threads", 2)["sections"]["traffic"] == [said]
    (tmp_path / "later.html").unlink(missing_ok=True)
    done = swjoin("report", later, "-o", tmp_path / "later.html")
    assert (done.code, done.err) == (0, [])


def test_plan_says_what_would_be_cut(inputs: dict[str, StreamConfig], swjoin: Any, tmp_path: Path) -> None:
    """For as many ranks as the run had, what it measured; for others, by its traffic; without its file nothing."""
    cluster = {"partition_count": 12, "strategy": "query"}
    report = run_local(plan_job(CHAIN, inputs, tmp_path, "count", cluster=cluster), False, 2)
    ways = report["edges"][2]["traffic"]
    crossed = ways["in_host"]["bytes"] / sum(way["bytes"] for way in ways.values())

    def shares(*words: object) -> Any:
        done = swjoin("plan", tmp_path, "--json", *words)
        assert done.code == 0, done.err
        found = json.loads(done.out)["edges"]
        assert [edge["between_ranks"] for edge in found if edge["edge"] != 2] == [None] * 3
        return found[2]["between_ranks"]

    found = shares("--threads", 2)
    assert found["by_number"] == pytest.approx(crossed)
    assert found["by_traffic"] < found["by_number"]
    wider = shares("-n", 6)
    assert 0 < wider["by_traffic"] < wider["by_number"]
    assert wider["by_number"] > crossed
    assert shares("-n", 6, "--set", "cluster.strategy=operator") == {"by_number": 1.0, "by_traffic": 1.0}
    assert shares("-n", 6, "--set", "cluster.partition_count=10") is None
    lines = swjoin("plan", tmp_path, "--threads", 2).out.splitlines()
    (line,) = [line for line in lines if line.startswith("j to i")]
    assert f"{100 * found['by_number']:.1f} %" in line
    assert line.endswith(f"{100 * found['by_traffic']:.1f} %")
    (tmp_path / "traffic.json.gz").write_bytes(b"damaged")
    assert shares("--threads", 2) is None
    assert "what goes between ranks is not known" in swjoin("plan", tmp_path, "--threads", 2).out
    (tmp_path / "traffic.json.gz").unlink()
    assert shares("--threads", 2) is None
    assert "is not known" not in swjoin("plan", tmp_path, "--threads", 2).out


def test_edges_that_no_run_has_written(a_run: Path, swjoin: Any, tmp_path: Path) -> None:
    report = json.loads((a_run / "run.json").read_text())
    for edges in (None, [3], [{"edge": 2}]):
        (tmp_path / "run.json").write_text(json.dumps(report | {"edges": edges}))
        done = swjoin("explain", tmp_path, "--threads", 1)
        if edges != [{"edge": 2}]:
            said = f"swjoin: {tmp_path}/run.json: its stages or edges are not as a run writes them"
            assert (done.code, done.err) == (2, [said])


def test_words_and_overrides(a_run: Path, swjoin: Any) -> None:
    done = swjoin("explain", a_run, "--threads", 1, "--set", "sink.kind=count", "--set", "checkpoint.interval=3s")
    assert (done.code, done.err) == (0, [])
    assert max(map(len, done.out.splitlines())) < 140
    assert "\nstages          stage 0 j: inner join" in done.out
    assert "\n                stage 1 i: left join" in done.out
    assert "stage 0  j x 1\n" in done.out
    assert "1 collector" not in done.out
    assert "a thread with an instance of every stage" in done.out
    assert "edge 4: stage 1 -> result out, any sink; counts and digests only." in done.out
    assert "Checkpoints every 3 s" in done.out


def test_a_union(inputs: dict[str, StreamConfig], swjoin: Any, tmp_path: Path) -> None:
    found = told(swjoin, written(tmp_path, "union", inputs), "-n", 3)
    assert [line.split(";")[0] for line in found["sections"]["edges"][:3]] == [
        "edge 0: source a, union input 0 -> stage 0 left, hash of k",
        "edge 1: source b, union input 1 -> stage 0 left, hash of k",
        "edge 2: source c -> stage 0 right, hash of k",
    ]
    assert found["diagram"][5].endswith("─┼─ stage 0  j x 1 on rank 2")
    assert found["sections"]["who does what"][1].startswith("Rank 2 plays the instance of every stage")


def test_a_diamond(inputs: dict[str, StreamConfig], swjoin: Any, tmp_path: Path) -> None:
    found = told(swjoin, written(tmp_path, "diamond", inputs), "-n", 4)
    ends = [line.split(", hash")[0] for line in found["sections"]["edges"]]
    assert ends[4:6] == ["edge 4: stage 0 -> stage 2 left", "edge 5: stage 1 -> stage 2 right"]
    assert [line.split(":")[1].split(" ->")[0] for line in ends].count(" source a") == 2


def test_a_self_join_by_text(inputs: dict[str, StreamConfig], swjoin: Any, tmp_path: Path) -> None:
    """Its key travels as columns."""
    found = told(swjoin, written(tmp_path, "self-join", inputs), "-n", 4)
    assert len(found["diagram"]) == 6
    assert found["sections"]["edges"][1] == (
        "edge 1: source a -> stage 0 right, hash of k, x; carries id, time, hash of the key, k int64, x string."
    )


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "refused setting": (
        lambda run: run["config"]["cluster"].update(communication="synchronous"),
        "cluster.communication: synchronous: runs of plans do not have this yet; leave it out",
    ),
    "input gone": (lambda run: run["config"]["inputs"][1].update(path="gone.csv"), "gone.csv: no such file or directory"),
    "too few inputs": (
        lambda run: run["config"]["inputs"].pop(),
        "plan: 2 inputs are given, the plan has 3 sources (a, b, c); ",
    ),
    "other type": (
        lambda run: run["plan"]["nodes"][0]["columns"].__setitem__(1, ["v", "string"]),
        "column v is int64, the plan has string",
    ),
    "no plan": (lambda run: run.update(plan=[]), "plan: is not what it must be"),
    "unknown kind": (lambda run: run["plan"]["nodes"][0].update(kind="sorce"), "plan: a.kind: 'sorce' is no kind of node; "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_run_is_one_line(name: str, a_run: Path, swjoin: Any, tmp_path: Path) -> None:
    report = json.loads((a_run / "run.json").read_text())
    change, words = WRONG[name]
    change(report)
    (tmp_path / "run.json").write_text(json.dumps(report))
    done = swjoin("explain", tmp_path, "--threads", 2)
    assert done.code == 2
    assert len(done.err) == 1
    assert words in done.err[0]


def test_damaged_files_are_one_line(swjoin: Any, tmp_path: Path) -> None:
    assert swjoin("explain", tmp_path).err == [
        f"swjoin: {tmp_path}/run.json: cannot be read (No such file or directory); is it the directory of a run that has ended?"
    ]
    for text, words in (("{", "is not valid JSON"), ("[]", "is neither a configuration nor the run.json of a run")):
        (tmp_path / "run.json").write_text(text)
        done = swjoin("explain", tmp_path)
        assert done.code == 2
        assert len(done.err) == 1
        assert words in done.err[0]
