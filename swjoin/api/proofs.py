"""`swjoin.proof`: of a table that a join returned, of a file of results, of a run.

What: `proof`; `remember(table, proof)`, for joins.
Why: a proof is of one result. What is derived from a table is another one, so tables are known by identity, not by what they
carry; files and runs are checked against their own account first.
Stays out: proofs in files (`connectors.files.proofs`), digests (`core.hashing`), recomputing (`duckdb.verify`, `spark.verify`).
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.config.loader import config_from_plain
from swjoin.core.errors import UserError
from swjoin.core.ledger import Ledger, PlanLedger, Proof, StreamCounts
from swjoin.core.units import named_path

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.api.runs import Run
    from swjoin.config.run import RunConfig

_OF_TABLES: dict[int, tuple[weakref.ref[pa.Table], Proof]] = {}  # by id, and of readers; tables have no hash


def remember(table: pa.Table, found: Proof) -> None:
    """This very table has this proof, as long as it lives."""
    key = id(table)
    _OF_TABLES[key] = weakref.ref(table, lambda _: _OF_TABLES.pop(key, None)), found


def proof(of: pa.Table | str | os.PathLike[str]) -> Proof:
    """Count, digest and ledger of a result, once they fit it.

    of: the table that `swjoin.join` returned, or its reader that has been read, in the process that called it. A table made
    from it (filtered, sliced, sorted, copied, pickled, read back) has none. Or the path of a Parquet file that swjoin wrote, or
    the directory of a complete run, or of a join with several sinks: their rows are counted, and where they have id columns
    their digest is computed; without, the bytes must be those that swjoin wrote. For one of several files of a run, count and
    digest are the file's, the ledger is the run's.

    UserError for anything else, or what has been changed.
    """
    if isinstance(of, str | os.PathLike):
        path = named_path(of, "proof")
        return _of_directory(path) if path.is_dir() else _of_file(path)
    known = _OF_TABLES.get(id(of))
    if known is None or known[0]() is not of:
        if hasattr(of, "read_next_batch"):
            raise UserError("proof: this reader is not one of swjoin.join, or has not been read to its end; read it first")
        raise UserError(
            "proof: this is not a table that swjoin.join returned in this process, though it may have been made from one; ask "
            "for the proof of the very table that was returned (a data frame has none: join with returns='arrow' and convert), "
            "or of a file that swjoin wrote"
        )
    return known[1]


def _of_file(path: Path) -> Proof:
    from swjoin.connectors.files.proofs import checked_claim

    if not path.is_file():
        raise UserError(f"{path}: no such file or directory")
    if path.name.endswith((".csv", ".csv.gz")):
        raise UserError(f"{path}: CSV files carry no proof; write Parquet, or ask for the proof of the run's directory")
    claim = checked_claim(path)
    if claim.whole is not None and claim.whole["count"] == claim.rows:
        return _of_whole(claim.whole)
    run_dir = path.absolute().parent.parent
    if path.absolute().parent.name != "results" or not (run_dir / "run.json").is_file():
        raise UserError(
            f"{path}: holds {claim.rows} rows of a larger result, unchanged; ask for the proof of the directory, or of its run"
        )
    run = _complete(run_dir)
    if claim.run is None:
        raise UserError(f"{path}: does not say which run wrote it, as an earlier version did; ask for the proof of {run_dir}")
    if claim.run != run.report.get("run_id"):
        raise _foreign(path, run_dir)
    return Proof(claim.rows, claim.digest, run.ledger, tuple(run.report.get("warnings", ())))


def _of_whole(whole: dict[str, Any]) -> Proof:
    """Of the account that files carry."""
    ledger = whole["ledger"]
    if "left" not in ledger:
        return Proof(whole["count"], whole["digest"], PlanLedger.of(ledger, whole["count"]), tuple(whole["warnings"]))
    left, right = StreamCounts(**ledger["left"]), StreamCounts(**ledger["right"])
    account = Ledger(left, right, ledger["produced"], ledger["collected"])
    return Proof(whole["count"], whole["digest"], account, tuple(whole["warnings"]))


def _of_sinks(folder: Path) -> Proof:
    """Of a directory that a join with several sinks wrote, whose files carry the account of all of them."""
    from swjoin.connectors.files.proofs import checked_claim
    from swjoin.core.join_semantics import format_digest

    claims = {path: checked_claim(path) for path in sorted(folder.glob("part-s*.parquet"))}
    first = next((claim for claim in claims.values() if claim.whole is not None), None)
    if first is None or first.whole is None:
        raise UserError(f"{folder}: holds no run.json; name a file of results, or the directory of a run")
    for path, claim in claims.items():
        if claim.run != first.run:
            raise UserError(f"{path}: was written by another join than the other files; put it back beside its own")
    rows, digest = sum(claim.rows for claim in claims.values()), sum(int(claim.digest, 16) for claim in claims.values())
    found = _of_whole(first.whole)
    if (rows, format_digest(digest)) != (found.count, found.digest):
        raise UserError(
            f"{folder}: its files hold {rows} rows, digest {format_digest(digest)}; the join had {found.count}, digest "
            f"{found.digest}: they are not all of its files any more, so there is no proof; run it again"
        )
    return found


def _foreign(path: Path, run_dir: Path) -> UserError:
    return UserError(f"{path}: was written by another run than the one in {run_dir}; put it back beside its own run.json")


def _complete(run_dir: Path) -> Run:
    """A run that has come to its end. UserError for others."""
    from swjoin.api.runs import Run
    from swjoin.connectors.files.run_folder import FORMAT

    run = Run.open(run_dir)
    report = run.report
    if report.get("simulated"):
        raise UserError(f"{run_dir}: is a simulation, which has no rows and so no proof; run it")
    if report.get("format") != FORMAT:
        raise UserError(
            f"{run_dir / 'run.json'}: format {report.get('format', 1)}, whose digest is computed in another way than in this "
            f"version's format {FORMAT}: run it again, or ask the version of swjoin that wrote it"
        )
    if not report.get("complete"):
        raise UserError(f"{run_dir}: the run did not come to its end, so there is no proof; resume it, or run it again")
    return run


def _of_directory(path: Path) -> Proof:
    run_dir = path.absolute().parent if path.name == "results" and not (path / "run.json").exists() else path
    if not (run_dir / "run.json").is_file():
        return _of_sinks(path)
    run = _complete(run_dir)
    config = config_from_plain(run.report["config"])
    if config.sink.kind in ("parquet", "csv"):
        rows, digest = _in_files(run_dir, run.report.get("run_id"), config)
        if rows != run.count or digest not in (None, run.digest):
            raise UserError(
                f"{run_dir / 'results'}: its files hold {rows} rows, digest {digest or 'unknown'}; the run had {run.count}, "
                f"digest {run.digest}: they are not the run's any more, so there is no proof; run it again"
            )
    return Proof(run.count, run.digest, run.ledger, tuple(run.report.get("warnings", ())))


def _in_files(run_dir: Path, run_id: str | None, config: RunConfig) -> tuple[int, str | None]:
    """Rows and digest over all files; no digest where CSV has no ids. UserError when there are none, or one of another run."""
    from swjoin.connectors.files.proofs import IDS, checked_claim, csv_pairs
    from swjoin.core.join_semantics import format_digest

    kind, ids = config.sink.kind, IDS[: 1 if config.query.kind.one_sided else 2] if config.sink.ids else ()
    rows, total, known = 0, 0, True
    paths = sorted((run_dir / "results").glob(f"part-*.{kind}"))
    if not paths:  # a run without results writes one, too
        raise UserError(f"{run_dir / 'results'}: holds no result files; the run wrote at least one, so there is no proof")
    for path in paths:
        if kind == "parquet":
            claim = checked_claim(path)
            if claim.run is not None and run_id is not None and claim.run != run_id:
                raise _foreign(path, run_dir)
            found: tuple[int, str | None] = claim.rows, claim.digest
        else:
            found = csv_pairs(path, ids)
        rows += found[0]
        known = known and found[1] is not None
        total += int(found[1] or "0", 16)
    return rows, format_digest(total) if known else None
