"""Proofs in Parquet files of results, and their verification.

What: `Claim`, in the footer of every Parquet file of results; `checked_claim(path)`; `csv_pairs`, for files without a footer;
`sampled_hash` of a file's bytes before the footer.
Why: readers copy the footer's metadata to derived tables and their files. So a claim is valid only if it fits the file: number
of rows, digest of the ids or, without ids, the bytes of the file.
Stays out: proofs of tables and of runs (`api.proofs`), where results go (`connectors.files.sink`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.files.csv_format import csv_parse_options
from swjoin.core.batch import MISSING_ID
from swjoin.core.errors import UserError, one_line
from swjoin.core.hashing import digest_pairs, hash_words
from swjoin.core.join_semantics import format_digest

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "swjoin"
_FORMAT = 1
_BLOCK, _SAMPLE, _WHOLE = 1 << 16, 512, 1 << 20  # bytes
IDS = ("left_id", "right_id")


@dataclass(frozen=True)
class Claim:
    """Claim of one file. rows, digest: of its rows. ids: names of its id columns. written: without id columns, the number of
    bytes before the footer and their sampled hash. whole: count, digest and ledger of the result, if known when the file was
    closed. run: id of the run, also in its run.json; None in files of earlier versions."""

    rows: int
    digest: str
    ids: Sequence[str]
    written: Sequence[int] | None
    whole: dict[str, Any] | None
    run: str | None = None

    def to_metadata(self) -> dict[str, str]:
        return {KEY: json.dumps({"format": _FORMAT, **vars(self)})}  # a ledger may be long: no copy of it


def sampled_hash(path: Path, size: int) -> int:
    """A hash of the first `size` bytes of a file: of all of them up to 1 MiB, else of 512 in every 64 KiB and of the last 512.

    Hashing all bytes of large results would slow a join by a sixth, and a rewritten file differs in every block after the first
    change. ValueError when the file is shorter.
    """
    data = np.memmap(path, np.uint8, "r", shape=(size,)) if size else np.zeros(0, np.uint8)
    if size <= _WHOLE:
        words = np.zeros(-(-size // 8), np.uint64)
        words.view(np.uint8)[:size] = data
        return hash_words(words, size)
    blocks = size // _BLOCK
    sample = np.zeros((blocks + 1) * _SAMPLE, np.uint8)
    sample[: blocks * _SAMPLE] = data[: blocks * _BLOCK].reshape(blocks, _BLOCK)[:, :_SAMPLE].reshape(-1)
    last = data[-_SAMPLE:]
    sample[blocks * _SAMPLE : blocks * _SAMPLE + len(last)] = last
    return hash_words(sample.view(np.uint64), size)


# ---------------------------------------------------------------- reading


def checked_claim(path: Path) -> Claim:
    """The claim of a file, verified. UserError when there is none, or it does not fit the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            claim = _claim_of(path, file.metadata.metadata or {})
            rows = file.metadata.num_rows
            if rows != claim.rows:
                raise _changed(path, f"{rows} rows, and there were {claim.rows}")
            missing = [name for name in claim.ids if name not in file.schema_arrow.names]
            if missing:
                raise _changed(path, f"no column {missing[0]}")
            if claim.ids:
                found = digest_of(file.iter_batches(columns=list(claim.ids)))
                if found is None or found[1] != claim.digest:
                    raise _changed(path, "the ids of other pairs")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)})") from None
    except pa.ArrowException as error:
        raise UserError(f"{path}: is no whole Parquet file ({one_line(error)})") from None
    if not claim.ids and not _as_written(path, claim.written):
        raise _changed(path, "other bytes")
    return claim


def _as_written(path: Path, written: Sequence[int] | None) -> bool:
    try:
        return written is not None and sampled_hash(path, written[0]) == written[1]
    except (ValueError, TypeError, IndexError, OverflowError):
        return False


def _claim_of(path: Path, metadata: dict[bytes, bytes]) -> Claim:
    stored = metadata.get(KEY.encode())
    if stored is None:
        raise UserError(f"{path}: carries no proof; name a Parquet file of results that swjoin wrote to its end, or its run")
    try:
        plain = json.loads(stored)
        if plain.pop("format") == _FORMAT:
            return Claim(**plain)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise UserError(f"{path}: its proof was written by another version of swjoin; ask that version, or join again")


def _changed(path: Path, what: str) -> UserError:
    return UserError(
        f"{path}: holds {what}: it has been changed since swjoin wrote it, and what it carries is no proof of it any more; "
        f"take the file that swjoin wrote, or join again"
    )


def digest_of(batches: Iterable[pa.RecordBatch]) -> tuple[int, str] | None:
    """Count and digest of the pairs in batches with left_id, right_id or one of them; None when these are no ids."""
    import pyarrow as pa

    count = total = 0
    for batch in batches:
        ids = []
        for name in IDS:
            if name not in batch.schema.names:
                ids.append(np.full(batch.num_rows, MISSING_ID, np.uint64))
                continue
            try:
                column = batch.column(name).cast(pa.uint64())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return None
            ids.append(np.array(column.fill_null(int(MISSING_ID))))
        count += batch.num_rows
        total += digest_pairs(ids[0], ids[1])
    return count, format_digest(total)


def csv_pairs(path: Path, ids: Sequence[str]) -> tuple[int, str | None]:
    """Rows of a CSV file of results, and the digest of their ids if it has id columns. UserError when it cannot be read."""
    import pyarrow as pa
    import pyarrow.csv as csv

    convert = csv.ConvertOptions(include_columns=list(ids) or None, column_types=dict.fromkeys(ids, pa.uint64()))
    try:
        with csv.open_csv(path, parse_options=csv_parse_options(path), convert_options=convert) as reader:
            if ids:
                return digest_of(reader) or (0, None)
            return sum(batch.num_rows for batch in reader), None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)})") from None
