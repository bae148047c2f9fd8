"""Mutated inputs at every door: a sample of what `./run.sh fuzz` does, what it has found, and that it finds what is planted."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from swjoin.checkpoint import manifest
from swjoin.cli.run import resumed_job
from swjoin.cluster import wire
from swjoin.cluster.role import MASTER, Received
from swjoin.cluster.slave.slave import Slave
from swjoin.config.loader import apply_overrides, config_from_plain, load_config
from swjoin.config.run import StreamConfig, TimeConfig
from swjoin.connectors import times
from swjoin.connectors.files import csv_format, formats, inputs, source
from swjoin.connectors.files.source import FileSource
from swjoin.core.batch import RowLayout, TupleBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import SlaveId
from swjoin.core.storage import AppendedFile
from swjoin.core.units import parse_duration_us, parse_size_bytes
from swjoin.forecast.costs import load_costs
from swjoin.runtime import in_process
from swjoin.sweeps.experiment import load_experiment
from tests.fuzzing import harness
from tests.fuzzing.__main__ import TARGETS, make
from tests.fuzzing.folders import CheckpointTarget
from tests.fuzzing.frames import WireTarget, read_frame, seeds, write_frame
from tests.fuzzing.harness import Target, Wrong, fuzz, judge
from tests.fuzzing.joins import Inputs
from tests.fuzzing.settings import YamlTarget
from tests.fuzzing.tables import CsvTarget, IpcTarget, ParquetTarget

# ---------------------------------------------------------------- the sample


@pytest.mark.drawn
@pytest.mark.parametrize(("name", "count"), [("wire", 2000), ("checkpoint", 60), ("yaml", 300), ("csv", 250)])
def test_a_sample_of_mutated_inputs_is_refused_or_right(name: str, count: int, tmp_path: Path) -> None:
    target = make(name)
    target.prepare(tmp_path)
    outcomes = [judge(target, seed) for seed in range(count)]
    assert [(seed, wrong) for seed, (_, wrong) in enumerate(outcomes) if wrong] == []
    _both_ways([outcome for outcome, _ in outcomes])


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["parquet", "ipc"])
def test_a_sample_of_mutated_files_is_refused_or_right(name: str) -> None:
    """In a process of its own: a library that crashes takes only that along."""
    tally = fuzz(name, 0, 120, workers=1, limit_s=60)
    assert not tally.findings, tally.findings[:3]
    _both_ways(list(tally.outcomes.elements()))


def _both_ways(outcomes: list[str]) -> None:
    """Neither hardly anything gets past the first check, nor hardly anything is refused."""
    accepted, refused = (sum(o.startswith(word) for o in outcomes) for word in ("accepted", "refused"))
    assert accepted + refused == len(outcomes)
    assert min(accepted, refused) > len(outcomes) // 20


# ---------------------------------------------------------------- what was found: messages


def _spoilt(name: str, change: Callable[[list[int], list[Any]], None], index: int = -1) -> np.ndarray[Any, Any]:
    """A seed of this kind with other integers or arrays."""
    data = [d for n, d in seeds() if n == name][index]
    kind, integers, arrays = read_frame(data)
    arrays = [None if a is None else a.copy() for a in arrays]
    change(integers, arrays)
    return np.frombuffer(write_frame(kind, integers, arrays), np.uint8)


def _put(place: int, value: Any) -> Callable[[list[int], list[Any]], None]:
    return lambda integers, arrays: arrays.__setitem__(place, value)


def _set(place: int, value: int) -> Callable[[list[int], list[Any]], None]:
    return lambda integers, arrays: integers.__setitem__(place, value)


@pytest.mark.parametrize(
    ("unpack", "buffer", "reason"),
    [
        (wire.unpack_delivery, _spoilt("delivery", _put(0, np.array([1, 0]))), "not ascending"),
        (wire.unpack_delivery, _spoilt("delivery", _put(0, np.array([-1, 0]))), "not ascending"),
        (wire.unpack_delivery, _spoilt("delivery", _put(0, np.array([0.0, 1.0]))), "dtype code"),
        (wire.unpack_delivery, _spoilt("delivery", _put(1, np.array([6, -1]))), "do not add up"),
        (wire.unpack_delivery, _spoilt("delivery", _put(1, np.array([2**62, 2**62]))), "do not add up"),
        (wire.unpack_delivery, _spoilt("delivery", _put(2, np.array([3]))), "unequal length"),
        (wire.unpack_delivery, _spoilt("delivery", _put(8, np.array([0, 9, 6, 15, 12, 15]))), "offsets"),
        (wire.unpack_delivery, _spoilt("delivery", _set(5, 7)), "flags"),
        (wire.unpack_delivery, _spoilt("delivery", _set(6, 8)), "routes"),
        (wire.unpack_state, _spoilt("state", _set(9, 2)), "flags"),
        (wire.unpack_state, _spoilt("state", _set(11, 50), 0), "directory of depth 50"),
        (wire.unpack_state, _spoilt("state", _put(10, np.array([0, 0])), 0), "belong to none"),
        (wire.unpack_state, _spoilt("state", _put(0, np.array([0, 2])), 0), "mini-partition-group 2 of 2"),
        (wire.unpack_loads, _spoilt("loads", _put(0, np.array([np.nan]))), "occupancy"),
        (wire.unpack_loads, _spoilt("loads", _put(0, np.empty(0))), "occupancy"),
        (wire.unpack_results, _spoilt("results", _put(13, np.zeros(1, np.uint64))), "unequal length"),
        (wire.unpack_tuples, _spoilt("tuples", _put(0, np.zeros((3, 1), np.int64))), "dimensions"),
    ],
)
def test_what_kernels_rely_on_is_checked(unpack: Callable[[Any], Any], buffer: Any, reason: str) -> None:
    """Each of these was taken as it came: kernels read beyond arrays, or a table of 2^50 entries would have been made."""
    with pytest.raises(RunFailed, match=f"corrupt message.*{reason}"):
        unpack(buffer)


def test_rows_without_bytes_are_counted_before_they_are_believed() -> None:
    """2^62 rows of 0 bytes fit into any message; NumPy refused the array with a traceback."""
    data = bytearray(next(d for n, d in reversed(seeds()) if n == "tuples"))
    struct.pack_into("<4q", data, 64 + 4 * 32, 3, 2, 1 << 62, 0)
    with pytest.raises(RunFailed, match=r"payload: dtype code 3, 2 dimensions, shape \(4611686018427387904, 0\)"):
        wire.unpack_tuples(np.frombuffer(bytes(data), np.uint8))


def test_the_same_message_is_the_same_bytes() -> None:
    """The padding between arrays held whatever memory held before."""
    batch = TupleBatch(np.arange(3), np.arange(3), np.arange(3, dtype=np.uint64), np.arange(3))
    frames = []
    for filler in (0x55, 0xAA):
        np.full(1 << 12, filler, np.uint8)
        frames.append(bytes(wire.pack_tuples(batch)))
    assert frames[0] == frames[1]
    assert frames[0] == write_frame(*read_frame(frames[0]))


def test_a_delivery_of_another_run_is_refused_by_the_slave() -> None:
    """Whole as a message, but with a partition-group, or a width of rows, that the run does not have."""
    config = config_from_plain({"join": {"within": "1s"}, "module": {"window": "1MB"}, "cluster": {"partition_count": 5}})
    good = wire.unpack_delivery(np.frombuffer([d for n, d in seeds() if n == "delivery"][1], np.uint8))
    slave = Slave(SlaveId(0), config, (None, None))
    with pytest.raises(RunFailed, match="partition-group 9, the run has 5"):
        slave.handle(Received(MASTER, good), 0)
    slave = Slave(SlaveId(0), config, (RowLayout(8), None))
    with pytest.raises(RunFailed, match="left: payload rows of None, the stream has"):
        slave.handle(Received(MASTER, dataclasses.replace(good, groups=np.array([0, 4]))), 0)


# ---------------------------------------------------------------- what was found: configurations

_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seed: 2024-01-01", "seed: a date; put it in quotes"),  # json.dumps: TypeError
        ("seed: 2024-02-31", "not valid YAML"),  # datetime: ValueError
        ("seed: " + "9" * 5000, "not valid YAML"),  # int: ValueError
        ("seed: 0x" + "f" * 6000, "beyond 64 bits"),  # repr of it: ValueError
        ("seed: !!int ''", "not valid YAML"),  # PyYAML: IndexError
        ("seed: !!bool x", "not valid YAML"),  # PyYAML: KeyError
        ("seed: !!timestamp x", "not valid YAML"),  # PyYAML: AttributeError
        ("seed: " + "[" * 600, "nested too deeply"),  # RecursionError
        ("seed: &a [*a]", "nested too deeply"),  # json.dumps: ValueError
        (_LAUGHS, "more than 20000 values"),  # would have been written out: 9^9 values
        ("seed: .nan", "no finite number"),
        ("workload: {rate: .inf}", "no finite number"),  # was accepted: streams without end
        ("seed: !!set {a}", "a set"),
        ("{[1]: 2}", "not valid YAML"),
        ('left: {path: "a\\0b"}', "is no text"),  # open: ValueError
        ('left: {path: "\\ud800"}', "is no text"),  # print: UnicodeEncodeError
        ("module: {window: " + "9" * 400 + "GB}", "write a number and a unit"),  # float: OverflowError
        ("module: {window: -1}", "size"),
        ("time: {max_out_of_order: " + "9" * 5000 + "s}", "write a number and a unit"),
        ("time: {max_out_of_order_us: 5000000000000000000}", "longer than"),
        ("time: {max_out_of_order: 5000000000000000000}", "has no unit"),
        ("seed: " + "a" * 5000, "expected int, got 'aaa"),
        ("#" * 300_000, "too large"),
    ],
)
def test_yaml_from_anywhere_is_plain_or_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{text}\njoin: {{within: 1s}}\n" if text[0] != "{" else text)
    with pytest.raises(UserError, match=reason) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_set_is_read_with_the_same_care() -> None:
    with pytest.raises(UserError, match=r"--set 'seed=2024-01-01'.* a date"):
        apply_overrides({}, ["seed=2024-01-01"])
    with pytest.raises(UserError, match=r"--set .* nested too deeply"):
        apply_overrides({}, ["seed=" + "[" * 600])


def test_sizes_are_exact() -> None:
    assert parse_size_bytes("9007199254740993B") == 2**53 + 1  # went through a float
    assert parse_duration_us("٣s".replace("٣", "3")) == 3_000_000
    with pytest.raises(UserError):
        parse_duration_us("٣s")  # digits of other scripts


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("preset: [quick]", "preset"),
        ("plot: {panels: 5}", "plot.panels"),
        ("plot: {x: {a: 1}}", "plot.x"),
        ("base: " + "a" * 300, "cannot be read"),
    ],
)
def test_experiments_that_are_none(line: str, reason: str, tmp_path: Path) -> None:
    """TypeError: unhashable type, TypeError: not iterable, OSError: file name too long."""
    (tmp_path / "base.yaml").write_text("join: {within: 1s}\n")
    base = "" if line.startswith("base") else f"base: {tmp_path / 'base.yaml'}\n"
    (tmp_path / "e.yaml").write_text(f"question: why?\n{base}{line}\n")
    with pytest.raises(UserError, match=reason):
        load_experiment(tmp_path / "e.yaml")


def test_costs_that_are_no_numbers_are_quoted_in_short(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"message_ns: {'a' * 5000}\n")
    with pytest.raises(UserError, match="message_ns: expected a number") as caught:
        load_costs(str(tmp_path / "c.yaml"))
    assert len(str(caught.value)) < 500


# ---------------------------------------------------------------- what was found: rows

_STREAM = StreamConfig("", ("k",), "ts", "us")


def _joined(target: Any, folder: Path, left: bytes | list[bytes], right: bytes, stream: StreamConfig = _STREAM) -> str:
    """Accepted or refused, and right: by the fuzzer's own reference."""
    folder.mkdir(exist_ok=True)
    target.prepare(folder)
    inputs = Inputs(stream, stream, (-10, 10), TimeConfig("event", 0, "drop"))
    pieces = left if isinstance(left, list) else [left]
    result: str = target.check(target._written(random.Random(0), inputs, [pieces, [right]]), "test")
    return result


def _parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def _arrow(**columns: Any) -> bytes:
    sink, table = pa.BufferOutputStream(), pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_words_that_a_library_takes_for_nulls_are_keys(tmp_path: Path) -> None:
    """NA, null, nan and a dozen others did not join: unquoted they were taken for nulls, which only an empty field is."""
    text = b"k,ts\nNA,1\nnull,2\n,3\nNaN,4\n"
    assert _joined(CsvTarget(), tmp_path, text, text) == "accepted: test"


def test_a_column_that_stands_twice_in_a_later_file(tmp_path: Path) -> None:
    """KeyError: it is there, but the library finds no one column of that name."""
    twice = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([1]), pa.array([1])], ["k", "ts", "k"]), twice)
    good = _parquet(k=[1], ts=[1])
    assert _joined(ParquetTarget(), tmp_path, [good, bytes(twice.getvalue())], good) == "refused: test"


def test_names_of_columns_that_are_no_text(tmp_path: Path) -> None:
    """UnicodeDecodeError, as soon as the names were listed."""
    assert _joined(CsvTarget(), tmp_path, b"k,ts,\xfd\n1,1,1\n", b"k,ts\n1,1\n") == "refused: test"


def test_intervals_are_no_keys(tmp_path: Path) -> None:
    """ArrowNotImplementedError: they are temporal, but no number."""
    data = _arrow(k=pa.nulls(1, pa.month_day_nano_interval()), ts=[1])
    assert _joined(IpcTarget(), tmp_path, data, data) == "refused: test"


def test_buffers_of_ipc_files_are_looked_at(tmp_path: Path) -> None:
    """The library takes lengths and offsets as they stand in the file; kernels then read far beyond, or looped for minutes."""
    good = _arrow(k=["a", "bc", "d"], ts=[1, 2, 3])
    offsets = np.array([0, 1, 3, 4], np.int32).tobytes()
    assert good.count(offsets) == 1
    bad = good.replace(offsets, np.array([0, 1, 2**30, 2**30 + 1], np.int32).tobytes())
    assert _joined(IpcTarget(), tmp_path, good, good) == "accepted: test"
    assert _joined(IpcTarget(), tmp_path / "again", bad, good) == "refused: test"


def test_dictionaries_of_numbers_come_back(tmp_path: Path) -> None:
    """ArrowNotImplementedError once there were results: Arrow casts strings to dictionaries, and nothing else."""
    kind = pa.dictionary(pa.int8(), pa.int64())
    data = _arrow(
        k=pa.array([1, 2, 2]).dictionary_encode().cast(kind), ts=[1, 2, 3], p=pa.array([0.5, None, 1.5]).dictionary_encode()
    )
    assert _joined(IpcTarget(), tmp_path, data, data) == "accepted: test"


def test_a_path_that_is_too_long_is_not_there() -> None:
    with pytest.raises(UserError, match="no such file"):
        inputs.list_files(Path("a" * 5000))


# ---------------------------------------------------------------- what was found: checkpoints


def test_rows_of_an_appended_file_are_whole(tmp_path: Path) -> None:
    """Bytes that are no whole rows, with the right checksum: ValueError at the end of the run, once it was complete."""
    (tmp_path / "rows").write_bytes(b"abc")
    with pytest.raises(RunFailed, match="rows: 3 bytes are no whole rows of 8 bytes"):
        AppendedFile(tmp_path / "rows", (3, 891568578), 8)


def test_a_manifest_names_only_files_of_its_own(tmp_path: Path) -> None:
    """A signed manifest is what somebody has written, not what may be believed: its names became paths."""
    with pytest.raises(RunFailed, match=r"m\.json: corrupt checkpoint \(config is not"):
        manifest.check_manifest(tmp_path / "m.json", {})
    names = ("../../etc/passwd", "segment-0001-0000-000001.log/../x.log", "segment-0001-0000-000001.log")
    assert [manifest._log_name(name) for name in names] == [False, False, True]


def test_forged_manifests_end_in_a_refusal(tmp_path: Path) -> None:
    """The next distribution epoch after the end of time never came: the run waited for ever. Others were tracebacks."""
    target = CheckpointTarget()
    target.prepare(tmp_path)
    stopped = target.stopped[0]
    forgeries: list[tuple[str, Any]] = [
        ("gateways.0.state.gateway.boundary_us", 1 << 62),
        ("gateways.0.keys", None),
        ("sinks.0.state.tally.count", {}),
        ("sinks.0.results", ["../../x.parquet"]),
        ("segments", [{"name": "segment-1.log"}]),
        ("alive_us", [0]),
    ]
    for place, value in forgeries:
        target.lay_out(stopped)
        plain = json.loads(stopped.newest.read_text())
        *path, last = place.split(".")
        holder: Any = plain
        for key in path:
            holder = holder[int(key) if key.isdigit() else key]
        holder[last] = value
        target._sign(stopped, plain)
        with pytest.raises(RunFailed, match=r"checkpoint-\d+\.json: corrupt checkpoint .* is not what it must be"):
            in_process.run_local(resumed_job(target.case), False, 1)


# ---------------------------------------------------------------- a check that cannot fail is none


def _findings(target: Target, folder: Path, count: int, enough: int = 3) -> list[str]:
    """What is wrong with the first inputs, in this process."""
    folder.mkdir(exist_ok=True)
    target.prepare(folder)
    found = []
    for seed in range(count):
        if (wrong := judge(target, seed)[1]) is not None:
            found.append(wrong)
            if len(found) == enough:
                break
    return found


def test_a_decoder_that_believes_sizes_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wire._Frame, "same_length", lambda self, first, *others: len(self.arrays[first] or ()))
    monkeypatch.setattr(wire._Frame, "sums_up", lambda self, column, total: None)
    assert len(_findings(WireTarget(), tmp_path, 3000)) == 3


def test_a_decoder_that_takes_any_offsets_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def rows(self: Any, first: int, count: int) -> Any:
        fixed, offsets, tails = self.arrays[first : first + 3]
        return None if fixed is None else wire.PayloadRows(fixed, offsets, tails)

    monkeypatch.setattr(wire._Frame, "rows", rows)
    assert len(_findings(WireTarget(), tmp_path, 3000)) == 3


def test_a_message_that_loses_a_number_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unpack = wire.unpack_delivery
    monkeypatch.setattr(
        "tests.fuzzing.frames.CODECS", {"delivery": (lambda b: dataclasses.replace(unpack(b), served=1), wire.pack_delivery)}
    )
    assert _findings(WireTarget(), tmp_path, 500)


@pytest.mark.parametrize(("target", "count"), [(ParquetTarget, 400), (CsvTarget, 400)])
def test_a_reader_that_loses_a_row_is_caught(target: type, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    batches = FileSource._batches

    def losing(self: FileSource, *what: Any) -> Iterator[Any]:
        for index, batch, positions in batches(self, *what):
            yield index, batch.slice(0, max(1, batch.num_rows - 1)), positions

    monkeypatch.setattr(FileSource, "_batches", losing)
    monkeypatch.setattr(source, "_row_groups", lambda found: None)
    assert len(_findings(target(), tmp_path, count)) == 3


def test_times_in_another_unit_are_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(times, "_UNIT_US", {"s": 1_000_000, "ms": 2_000, "us": 1})
    assert _findings(ParquetTarget(), tmp_path, 800, 1)


def test_nulls_by_another_rule_are_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def options(path: Any, schema: Any, columns: Any) -> Any:
        types = None if schema is None else {f.name: f.type for f in schema}
        return arrow_csv.ConvertOptions(column_types=types, include_columns=columns, strings_can_be_null=True)

    monkeypatch.setattr(csv_format, "_convert_options", options)
    assert _findings(CsvTarget(), tmp_path, 800, 1)


def test_errors_that_nobody_catches_are_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(formats, "refusing", lambda path: nullcontext())
    monkeypatch.setattr(source, "refusing", lambda path: nullcontext())
    assert _findings(ParquetTarget(), tmp_path, 100, 1)[0].startswith(("Arrow", "OSError"))


def test_a_configuration_that_forgets_a_value_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = config_from_plain

    def forgetting(data: Any) -> Any:
        return real({k: v for k, v in data.items() if k != "seed"})

    monkeypatch.setattr("swjoin.config.loader.config_from_plain", forgetting)
    assert "seed" in _findings(YamlTarget(), tmp_path, 400, 1)[0]


def test_a_corrupt_checkpoint_that_is_believed_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Records without their checksum: what a disk has changed is joined as if it had been delivered."""
    monkeypatch.setattr("swjoin.core.storage.zlib.crc32", lambda data, crc=0: 0)
    target = CheckpointTarget()
    target.prepare(tmp_path)
    monkeypatch.setattr(target, "_files", lambda stopped: sorted((target.case / "checkpoints").glob("segment-*")))
    monkeypatch.setattr(target, "attempt", partial(_only_bits, target))
    assert _wrong_answers(target)


def test_a_resumption_that_forgets_its_windows_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = CheckpointTarget()
    target.prepare(tmp_path)
    monkeypatch.setattr(Slave, "restore", lambda self, delivery: None)
    assert _wrong_answers(target)


def _only_bits(target: CheckpointTarget, random: random.Random) -> str:
    """An attempt that spoils one bit of a log."""
    stopped = random.choice(target.stopped)
    target.lay_out(stopped)
    return target.check(stopped, target._spoil_file(random, stopped), signed=False, slaves=1, read_alone=True)


def _wrong_answers(target: CheckpointTarget) -> bool:
    return any("instead of" in (judge(target, seed)[1] or "") for seed in range(400))


@pytest.mark.drawn
def test_crashes_hangs_and_memory_are_told_with_their_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers that are started with a target that dies: the fuzzer goes on behind it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, time\n"
        "import tests.fuzzing.harness as harness\n"
        "import numpy as np\n"
        "real = harness.judge\n"
        "class Greedy:\n"
        "    def attempt(self, random): np.empty(1 << 34, np.uint8)\n"
        "def judge(target, seed):\n"
        "    if seed == 105: return real(Greedy(), seed)\n"
        "    if seed == 110: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    if seed == 120: time.sleep(3600)\n"
        "    return real(target, seed)\n"
        "harness.judge = judge\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{harness.ROOT}")
    tally = fuzz("wire", 0, 150, workers=1, limit_s=8)
    assert [seed for seed, _ in tally.findings] == [105, 110, 120]
    found = [what for _, what in tally.findings]
    assert found[0].startswith("MemoryError")
    assert found[1:] == ["killed by SIGSEGV", "took longer than 8 s"]
    assert tally.outcomes.total() == 150


def test_every_target_can_be_made() -> None:
    assert [make(name).name for name in TARGETS] == list(TARGETS)
    with pytest.raises(Wrong):
        harness.check_refusal(UserError("something is wrong"), "file.csv")
    with pytest.raises(Wrong):
        harness.check_refusal(UserError("file.csv" * 1000), "file.csv")
