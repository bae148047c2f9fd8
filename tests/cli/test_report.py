"""The HTML report of a run: whole, well formed, self-contained, and right about complete, stopped, failed and odd runs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from swjoin.cluster.ranks import RankMap
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.forecast.costs import PRESETS
from swjoin.forecast.model.run import simulate
from swjoin.forecast.summary import forecast, store
from swjoin.runtime.run_report import partial_report, rank_roles
from tests.support.checked_html import Checked
from tests.support.stored_runs import a_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "a run"
    a_run(folder)
    return folder


def reported(swjoin: Any, folder: Path, out: Path) -> Checked:
    done = swjoin("report", folder, "-o", out)
    assert (done.code, done.err) == (0, [])
    text = out.read_text()
    assert "@import" not in text
    assert "url(" not in text
    page = Checked(text)
    assert page.fetched == []
    return page


def changed(run_dir: Path, folder: Path, **values: Any) -> Path:
    """A directory with nothing but run.json, in which some values are others."""
    folder.mkdir()
    report = json.loads((run_dir / "run.json").read_text()) | values
    (folder / "run.json").write_text(json.dumps(report))
    return folder


def test_a_complete_run(run_dir: Path, swjoin: Any, tmp_path: Path) -> None:
    page = reported(swjoin, run_dir, tmp_path / "out.html")
    report = json.loads((run_dir / "run.json").read_text())
    assert page.verdict == "verdict good"
    assert f"{report['results']['count']:,} pairs, digest {report['results']['digest']}" in page.text
    assert "Not verified" in page.text
    for heading in ("Ledger", "Over time", "Timeline", "Memory, estimated and used", "Ranks", "What was run", "Versions"):
        assert heading in page.headings
    assert len(page.images) == 2, "the overview, and how it adapted"
    for source in page.images:
        kind, data = source.split(";base64,")
        decoded = base64.b64decode(data)
        assert (kind, b"<svg" in decoded[:1000]) in (("data:image/svg+xml", True), ("data:image/png", False))
    assert "yields partition-group" in page.text
    assert "thread of slave 2" in page.text
    assert "12 partition-groups" in page.text
    assert swjoin("report", run_dir).code == 0
    assert (run_dir / "report.html").is_file()


@pytest.mark.parametrize(("equal", "kind", "words"), [(True, "good", "Verified: Spark"), (False, "bad", "Verification failed")])
def test_what_verify_found_is_told(run_dir: Path, equal: bool, kind: str, words: str, swjoin: Any, tmp_path: Path) -> None:
    folder = changed(run_dir, tmp_path / "run")
    results = json.loads((folder / "run.json").read_text())["results"]
    found = {"equal": equal, "count": results["count"] - (not equal), "digest": "0f" * 8}
    claimed = {"claimed_count": results["count"], "claimed_digest": results["digest"]}
    (folder / "verified.json").write_text(json.dumps(found | claimed))
    page = reported(swjoin, folder, tmp_path / "out.html")
    assert page.verdict == f"verdict {kind}"
    assert words in page.text
    (folder / "verified.json").write_text(json.dumps(found | claimed | {"claimed_digest": "other"}))
    again = reported(swjoin, folder, tmp_path / "out.html")
    assert "of another run" in again.text
    assert again.verdict == "verdict good"


def test_stopped_unbalanced_and_overloaded_runs(run_dir: Path, swjoin: Any, tmp_path: Path) -> None:
    ledger = {"balanced": False, "complaints": ["the run was stopped before its end"]}
    stopped = changed(run_dir, tmp_path / "stopped", complete=False, resumable=True, ledger=ledger)
    page = reported(swjoin, stopped, tmp_path / "out.html")
    assert page.verdict == "verdict warn"
    assert "swjoin run --resume" in page.text
    assert "No figure" in page.text
    ledger = {"balanced": False, "complaints": ["left: 3 tuples are missing"]}
    page = reported(swjoin, changed(run_dir, tmp_path / "bad", ledger=ledger), tmp_path / "out.html")
    assert page.verdict == "verdict bad"
    assert "left: 3 tuples are missing" in page.text
    machine = {"overloaded": True, "reasons": ["node7: busy"]}
    page = reported(swjoin, changed(run_dir, tmp_path / "machine", machine=machine), tmp_path / "out.html")
    assert "node7: busy" in page.text


def test_recoveries_and_shed_tuples(run_dir: Path, swjoin: Any, tmp_path: Path) -> None:
    recovery = {"s": 0.5, "slaves": 2, "tuples": 1234}
    checkpoints = {"completed": 4, "longest_s": 0.25, "bytes": 5 << 20, "resumed_from": None, "recoveries": [recovery]}
    overload = {
        "policy": "shed",
        "victims": "random",
        "shed_by_group": {"left": [1], "right": [0]},
        "lost_pairs_estimate": 10.0,
        "spilled_tuples": 0,
        "peak_spilled_bytes": 0,
        "recall_estimate": 0.875,
    }
    folder = changed(run_dir, tmp_path / "run", checkpoints=checkpoints, overload=overload)
    page = reported(swjoin, folder, tmp_path / "out.html")
    for words in ("1234", "5.0 MiB", "0.25 s", "87.5%"):
        assert words in page.text


def test_a_failed_run_says_why(swjoin: Any, tmp_path: Path) -> None:
    config = config_from_plain({"join": {"within": "1s"}, "sink": {"kind": "count"}})
    job = Job(config, None, True, tmp_path / "run", None, "swjoin run <config>")
    (tmp_path / "run").mkdir()
    report = partial_report(
        job, {"count": 5, "digest": "00ff"}, "rank 2: no room <on> the disk & so on", rank_roles(RankMap(3))
    )
    (tmp_path / "run" / "run.json").write_text(json.dumps(report))
    page = reported(swjoin, tmp_path / "run", tmp_path / "out.html")
    assert page.verdict == "verdict bad"
    assert "The run failed" in page.text
    assert "rank 2: no room <on> the disk & so on" in page.text
    assert "swjoin run <config>" in page.text
    assert "Memory, estimated and used" not in page.headings


def test_several_gateways_and_sinks(run_dir: Path, swjoin: Any, tmp_path: Path) -> None:
    """A rank that plays a gateway besides its slave has the figures of its slave."""
    report = json.loads((run_dir / "run.json").read_text())
    assert "read by" not in reported(swjoin, run_dir, tmp_path / "one.html").text
    tuples = {name: stream["tuples"] for name, stream in report["input"].items()}
    half = {name: count // 2 for name, count in tuples.items()}
    rest = {name: count - half[name] for name, count in tuples.items()}
    more = {
        "gateways": [{"gateway": 0, "tuples": half}, {"gateway": 1, "tuples": rest}],
        "sinks": [{"sink": 0, "count": 1234567, "digest": "0a" * 8}, {"sink": 1, "count": 0, "digest": "0" * 16}],
        "ranks": {str(rank): {"host": "h", "role": role} for rank, role in enumerate(RankMap(5, 2, 3).names)},
    }
    folder = changed(run_dir, tmp_path / "run", **more)
    (folder / "metrics").symlink_to(run_dir / "metrics")
    text = reported(swjoin, folder, tmp_path / "out.html").text
    for words in (f"gateway 1 {rest['left']:,} {rest['right']:,} 50.0%", "sink 0 1,234,567 " + "0a" * 8):
        assert words in " ".join(text.split()), words
    assert "3 slave 1, gateway 2" in text
    assert "thread of slave 1" not in text


def test_text_is_never_markup(run_dir: Path, swjoin: Any, tmp_path: Path) -> None:
    evil = '<script>alert("x")</script><img src=http://example.org/x onerror=y>'
    config = json.loads((run_dir / "run.json").read_text())["config"]
    config["left"]["path"] = config["right"]["path"] = evil
    ranks = {"0": {"host": evil, "role": evil}}
    folder = changed(
        run_dir, tmp_path / evil.replace("/", "_"), command=evil, config=config, ranks=ranks, versions={evil: evil}
    )
    page = reported(swjoin, folder, tmp_path / "out.html")
    assert page.text.count(evil) >= 6
    assert page.images == []


def test_a_forecast_is_not_taken_for_a_run(swjoin: Any, tmp_path: Path) -> None:
    config = config_from_plain(
        {"join": {"within": "1s"}, "workload": {"rate": 500, "duration": "3s"}, "sink": {"kind": "count"}}
    )
    told = simulate(config, 2, PRESETS["modern"])
    store(forecast(told, "swjoin simulate"), told, tmp_path / "run")
    page = reported(swjoin, tmp_path / "run", tmp_path / "out.html")
    assert page.verdict == "verdict warn"
    assert "Simulated, not run" in page.text
    assert len(page.images) == 1


@pytest.mark.parametrize("content", [None, "{", "[]", '{"config": {}}'])
def test_what_is_no_run_is_refused(content: str | None, swjoin: Any, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    done = swjoin("report", tmp_path)
    assert done.code == 2
    assert len(done.err) == 1
    assert "run" in done.err[0]


def test_a_configuration_of_another_version_is_shown_as_it_is(run_dir: Path, swjoin: Any, tmp_path: Path) -> None:
    plain = to_plain(config_from_plain({"join": {"within": "1s"}})) | {"hologram": {"colour": "blue"}}
    page = reported(swjoin, changed(run_dir, tmp_path / "run", config=plain), tmp_path / "out.html")
    assert "cannot explain" in page.text
    assert "hologram" in page.text
