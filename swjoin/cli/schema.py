"""The command `schema`: the JSON Schema of a configuration on standard output.

What: `run_schema`.
Why: an editor that has the schema completes the keys of a configuration and marks mistakes.
Stays out: what the schema says (`config.json_schema`).
"""

from __future__ import annotations

import argparse
import json

from swjoin.config.json_schema import json_schema


def run_schema(args: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
