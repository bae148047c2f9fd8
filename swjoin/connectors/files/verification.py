"""Verification of a run, as far as no engine is needed: what is claimed, what is read, what was found.

What: `claimed`, the checks before an engine starts; `VerifyResult`, `QueriesVerified`; `result_files`, `left_out_file`;
`condition`, and for a join of a plan `condition_sql` and `kinds_of`.
Why: DuckDB and Spark recompute a result, each in its own way, and answer in the same way.
Stays out: recomputing (`duckdb.verify`, `spark.verify`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.connectors.files.formats import common_schema, row_count
from swjoin.connectors.files.inputs import list_files
from swjoin.connectors.files.run_folder import FORMAT, not_verifiable, read_report
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.join_semantics import format_digest
from swjoin.expressions.compiler import resolve, type_of
from swjoin.expressions.parser import Dialect, Kind, columns_of, parse_where, to_sql

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 20
_COMPARED: dict[str, Kind] = {"int": "int", "float": "float", "bool": "bool", "text": "text"}


@dataclass
class VerifyResult:
    """Both counts and digests, and up to 20 missing and surplus (left id, right id) pairs; -1: the side is missing.

    compared_pairs: whether the rows of result files were compared, too. file_count: rows of the result files; None: there are
    none. engine: what recomputed the result.
    """

    count: int
    digest: str
    claimed_count: int
    claimed_digest: str
    compared_pairs: bool
    missing: list[tuple[int, int]] = field(default_factory=list)
    surplus: list[tuple[int, int]] = field(default_factory=list)
    file_count: int | None = None
    engine: str = "Spark"

    @property
    def equal(self) -> bool:
        same = (self.count, self.digest) == (self.claimed_count, self.claimed_digest)
        return same and self.file_count in (None, self.count) and not self.missing and not self.surplus

    def lines(self) -> list[str]:
        """What `verify` prints."""
        found = {self.engine: f"{self.count:,} pairs, digest {self.digest}"}
        found["run"] = f"{self.claimed_count:,} pairs, digest {self.claimed_digest}"
        if self.file_count is not None:
            found["files"] = f"{self.file_count:,} pairs"
        out = [f"{f'{name}:':<{len(self.engine) + 2}}{text}" for name, text in found.items()]
        if self.equal:
            kept = "pairs" if self.file_count is None else "ids of pairs"
            return [*out, "equal" + ("" if self.compared_pairs else f" (count and digest; the run kept no {kept})")]
        for name, pairs in (("missing", self.missing), ("surplus", self.surplus)):
            out += [f"{name}: left {_shown(left)}, right {_shown(right)}" for left, right in pairs]
        return [*out, "DIFFERENT"]


@dataclass
class QueriesVerified:
    """What was found of each of several queries, by its name. count, digest: of all together, as are those that are claimed."""

    queries: dict[str, VerifyResult]
    count: int
    digest: str
    claimed_count: int
    claimed_digest: str
    engine: str = "DuckDB"

    @staticmethod
    def of(queries: dict[str, VerifyResult], claimed_count: int, claimed_digest: str) -> QueriesVerified:
        count = sum(result.count for result in queries.values())
        digest = format_digest(sum(int(result.digest, 16) for result in queries.values()))
        return QueriesVerified(queries, count, digest, claimed_count, claimed_digest)

    @property
    def _as_claimed(self) -> bool:
        return (self.count, self.digest) == (self.claimed_count, self.claimed_digest)

    @property
    def equal(self) -> bool:
        return self._as_claimed and all(result.equal for result in self.queries.values())

    def lines(self) -> list[str]:
        """What `verify` prints: a line for each query, and more of those that differ."""
        out = []
        for name, result in self.queries.items():
            out.append(f"{name}: {result.count:,} rows, digest {result.digest}: {'equal' if result.equal else 'DIFFERENT'}")
            out += [f"  {line}" for line in result.lines()[:-1] if not result.equal]
        if not self._as_claimed:
            run = f"{self.claimed_count:,} rows, digest {self.claimed_digest}"
            out.append(f"all together: {self.count:,} rows, digest {self.digest}; the run has {run}")
        return [*out, "equal" if self.equal else "DIFFERENT"]


def _shown(number: int) -> str:
    return "none" if number == -1 else str(number)


def claimed(run_dir: Path) -> tuple[dict[str, Any], Job]:
    """run.json and its job, before an engine is started. UserError when the run or its input cannot be read, RunFailed when the
    run did not finish."""
    report = read_report(run_dir)
    if report.get("simulated"):
        raise UserError(f"{run_dir}: was simulated, not run; there is no result to verify")
    if not report.get("complete"):
        raise RunFailed(f"{run_dir}: the run did not finish ({report.get('failure') or 'no reason given'})")
    if report.get("format") != FORMAT:
        raise UserError(
            f"{run_dir / 'run.json'}: format {report.get('format', 1)}, whose digest is computed in another way than in this "
            f"version's format {FORMAT}: run it again, or verify it with the version of swjoin that wrote it"
        )
    if report["results"].get("count") is None or report["results"].get("digest") is None:
        raise UserError(f"{run_dir / 'run.json'}: holds no count and digest to verify; the file is damaged")
    config = config_from_plain(report["config"])
    why = not_verifiable(report, config)
    if why is not None:
        raise UserError(f"{run_dir}: {why}")
    try:
        job = Job(config, None, False, None, None, "verify").with_plan_of(report)
    except UserError as error:
        raise error.prefixed(str(run_dir / "run.json")) from None
    if job.queries:
        _check_queries(run_dir, report.get("queries"), job.queries)
    for stream in config.streams:
        if stream.path is not None:
            try:
                list_files(stream.path)
            except UserError as error:
                raise UserError(f"{error}; verify reads the run's input again") from None
    if config.sink.kind == "parquet":
        for folder in replace(job, target=run_dir / "results", directory=True).result_folders:
            for path in result_files(folder, config):
                row_count(path)
    return report, job


def _check_queries(run_dir: Path, found: object, names: Sequence[str]) -> None:
    """UserError unless a report has count and digest of each query of its plan, and of no other."""
    plain = [query for query in found if isinstance(query, dict)] if isinstance(found, list) else []
    whole = [q for q in plain if isinstance(q.get("count"), int) and re.fullmatch("[0-9a-f]{16}", str(q.get("digest")))]
    if [query.get("name") for query in whole] != list(names):
        raise UserError(f"{run_dir / 'run.json'}: queries: has not the count and digest of each query; the file is damaged")


def result_files(folder: Path, config: RunConfig) -> list[Path]:
    """The result files in a folder of a run whose sink is files. RunFailed when there are none."""
    files = sorted(folder.glob(f"*.{config.sink.kind}"))
    if not files:
        raise RunFailed(f"{folder}: holds no result files")
    return files


def left_out_file(run_dir: Path) -> Path:
    """The list of the tuples that the run has not joined, a directory where several gateways have made it. UserError without
    it."""
    path = run_dir / "late.parquet"
    if not path.exists():
        raise UserError(f"{path}: is missing; it lists the tuples that the run has left out")
    return path


# ---------------------------------------------------------------- the condition


def kinds_of(columns: Iterable[tuple[str, pa.DataType]]) -> dict[str, Kind]:
    """How these columns are compared, by the types with which the run read them: an engine infers other types of CSV columns
    that hold `nan`."""
    found: dict[str, Kind] = {}
    for name, kind in columns:
        with contextlib.suppress(UserError):  # of a type that no condition can use
            found[name] = _COMPARED.get(type_of(name, kind), "other")
    return found


def _kinds(stream: StreamConfig) -> dict[str, Kind]:
    """Of the columns of a stream; generated ones are integers."""
    if stream.path is None:
        return {"key": "int", "ts": "int"}
    return kinds_of((column.name, column.type) for column in common_schema(list_files(stream.path, stream.csv)).schema)


def condition_columns(config: RunConfig, names: Sequence[list[str]]) -> tuple[list[str], list[str]]:
    """The left and the right columns that the condition uses. names: of all columns, per side."""
    used: tuple[list[str], list[str]] = ([], [])
    if config.query.where is not None:
        for name in columns_of(parse_where(config.query.where)):
            side, column = resolve(name, (names[0], names[1]), (config.left.key, config.right.key))
            if column not in used[side]:
                used[side].append(column)
    return used


def condition(config: RunConfig, names: Sequence[list[str]], dialect: Dialect, quoted: Callable[[int, str], str]) -> str | None:
    """The residual predicate in an engine's SQL; None without one. names: of all columns, per side. quoted: side and column ->
    identifier."""
    if config.query.where is None:
        return None
    keys, kinds = (config.left.key, config.right.key), [_kinds(stream) for stream in (config.left, config.right)]
    return condition_sql(config.query.where, names, keys, kinds, dialect, quoted)


def condition_sql(
    where: str,
    names: Sequence[list[str]],
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    kinds: Sequence[dict[str, Kind]],
    dialect: Dialect,
    quoted: Callable[[int, str], str],
) -> str:
    """A residual predicate in an engine's SQL. keys, kinds: per side."""

    def column(name: str) -> tuple[str, Kind]:
        side, found = resolve(name, (names[0], names[1]), keys)
        return quoted(side, found), kinds[side].get(found, "other")

    return to_sql(parse_where(where), column, dialect)
