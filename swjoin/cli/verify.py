"""`swjoin verify`: the result of a run, computed again.

What: `run_verify`; it leaves DIR/verified.json.
Why: an answer that was checked says so in its directory.
Stays out: computing it (`spark.verify`).
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path


def run_verify(args: argparse.Namespace) -> int:
    from swjoin.core.storage import write_json
    from swjoin.spark.verify import verify

    result = verify(Path(args.dir), args.spark_master)
    write_json(Path(args.dir) / "verified.json", {"equal": result.equal, **dataclasses.asdict(result)})
    for line in result.lines():
        print(line)
    return 0 if result.equal else 1
