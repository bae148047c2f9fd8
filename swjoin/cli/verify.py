"""`swjoin verify`: the result of a run, computed again.

What: `run_verify`; it leaves DIR/verified.json.
Why: an answer that was checked says so in its directory.
Stays out: computing it (`duckdb.verify`, `spark.verify`).
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from swjoin.cli.common_args import chosen_engine

if TYPE_CHECKING:
    from swjoin.connectors.files.verification import QueriesVerified, VerifyResult


def run_verify(args: argparse.Namespace) -> int:
    from swjoin.core.storage import write_json

    folder = Path(args.dir)
    if chosen_engine(args) == "spark":
        from swjoin.spark.verify import verify as verify_by_spark

        result: VerifyResult | QueriesVerified = verify_by_spark(folder, args.spark_master)
    else:
        from swjoin.duckdb.verify import verify

        result = verify(folder)
    write_json(folder / "verified.json", {"equal": result.equal, **dataclasses.asdict(result)})
    for line in result.lines():
        print(line)
    return 0 if result.equal else 1
