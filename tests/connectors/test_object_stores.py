"""Inputs in an object store: the answers are those of local files. The server is moto's, on the loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.config.run import StreamConfig
from swjoin.connectors.files.formats import edges_checksum
from swjoin.connectors.files.inputs import file_size, find_files
from swjoin.connectors.files.source import open_columns_source
from swjoin.core.errors import UserError
from swjoin.duckdb.verify import verify
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

moto = pytest.importorskip("moto.server")
TIMES: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us", "within": "40us"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Options of URIs whose bucket is on the server; the environment has credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("EC2_METADATA_DISABLED", "true")):
            patch.setenv(f"AWS_{name}", value)
        found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        found.start()
        host, port = found.get_host_and_port()
        yield f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        found.stop()


@pytest.fixture(scope="module")
def stored(server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A local folder, and the same files in a bucket: the options of its URIs."""
    folder = tmp_path_factory.mktemp("stored")
    for number, name in enumerate(("trips/day=1/x-0", "trips/day=1/x-1", "trips/day=2/x-0", "payments/p-0", "payments/p-1")):
        ts = np.arange(50) + 50 * (number % 3)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"key": ts % 5, "ts": ts, "name": [f"r{t}" for t in ts]}), folder / f"{name}.parquet")
    bucket, _ = fs.FileSystem.from_uri(f"s3://bucket?{server}&allow_bucket_creation=true")
    bucket.create_dir("bucket")
    fs.copy_files(str(folder), "bucket/data", destination_filesystem=bucket)
    return folder, server


@pytest.mark.parametrize("pattern", ["trips", "trips/*", "trips/**/x-[01].parquet", "trips/day=1/x-1.parquet"])
def test_a_join_equals_the_local_one(pattern: str, stored: tuple[Path, str]) -> None:
    folder, options = stored
    remote = [f"s3://bucket/data/{name}?{options}" for name in (pattern, "payments")]
    local = [folder / name for name in (pattern, "payments")]
    found, files = find_files(remote[0]).files, find_files(local[0]).files
    assert [str(file) for file in found] == [f"s3://bucket/data{str(file).removeprefix(str(folder))}" for file in files]
    assert [file_size(file) for file in found] == [file_size(file) for file in files]
    assert [edges_checksum(file) for file in found] == [edges_checksum(file) for file in files]
    answer = swjoin.join(*local, **TIMES)
    assert answer.num_rows > 40
    assert swjoin.join(*remote, **TIMES).equals(answer)


def test_splits_are_the_local_ones(stored: tuple[Path, str]) -> None:
    folder, options = stored
    sources = [
        open_columns_source(StreamConfig(path, (), "ts", time_unit="us"), ["key", "day"])
        for path in (f"s3://bucket/data/trips?{options}", str(folder / "trips"))
    ]
    remote, local = [source.splits(1_000) for source in sources]
    assert local is not None
    assert [split.high_us for split in local] == [49, 99, 149]
    assert remote == local
    for split in local[::-1]:
        found = []
        for source in sources:
            assert source.open_split(split, 20) == split.low_us + 19
            batch = source.read()
            assert batch is not None
            assert batch.columns is not None
            found.append((batch.id.tolist(), batch.ts.tolist(), batch.columns.batch.to_pydict()))
            assert source.read() is None
        assert found[0] == found[1]
        assert found[0][0] == list(range(split.row + 20, split.row + 50))
    assert [source.origin_us() for source in sources] == [0, 0]
    for source in sources:
        source.close()


@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_a_run_is_verified(ranks: int | None, stored: tuple[Path, str], tmp_path: Path) -> None:
    folder, options = stored
    sides = {"key": ["key"], "time": "ts", "time_unit": "us"}
    config = {
        "join": {"within": "40us", "where": "day >= right_ts - left_ts"},
        "left": {"path": f"s3://bucket/data/trips?{options}&anonymous=true", **sides},
        "right": {"path": [f"s3://bucket/data/payments/p-{n}.parquet?{options}" for n in (0, 1)], **sides, "key": ["key"]},
        "time": {"late": "drop", "max_out_of_order": "200us"},
        "sink": {"kind": "parquet", "ids": True},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    argv = [sys.executable, "-m", "swjoin", "run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run")]
    argv += [] if ranks is None else ["-n", str(ranks)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    local = swjoin.count(
        folder / "trips", folder / "payments", max_out_of_order="200us", late="drop", where=config["join"]["where"], **TIMES
    )  # type: ignore[index]
    assert result.count == local.count > 100


def test_errors(stored: tuple[Path, str], tmp_path: Path) -> None:
    _, options = stored

    def refused(uri: str) -> str:
        with pytest.raises(UserError) as caught:
            swjoin.count(uri, uri, **TIMES)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert refused(f"s3://none/x?{options}") == f"s3://none/x?{options}: no such file or folder"
    assert refused(f"s3://bucket/none?{options}") == f"s3://bucket/none?{options}: no such file or folder"
    assert refused(f"s3://bucket/data/x*?{options}").startswith(f"s3://bucket/data/x*?{options}: matches no data files (")
    assert refused(f"s3://*/data?{options}") == f"s3://*/data?{options}: name the bucket; only what follows it may be a pattern"
    assert "cannot be reached: Unexpected query parameter in S3 URI: 'zone'" in refused(f"s3://bucket/data?{options}&zone=x")
    gone = options.replace(options.split("&")[0], "endpoint_override=127.0.0.1:9")
    assert "cannot be reached: When getting information" in refused(f"s3://bucket/data?{gone}")
