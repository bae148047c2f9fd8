"""How fast the C++ yardstick (reference.cpp) joins two Parquet files: one core, time order, count and digest of the pairs.

Shows what the reference workload costs when nothing is general: both modes of reference.cpp, one tuple at a time and with the
cache lines of a batch fetched ahead. Compiles it with g++ into a temporary folder and hands it the columns as raw files.
Out of scope: reading Parquet and starting up are not in the seconds, and there is no payload and no output.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import child, common

FLAGS = ["-std=c++20", "-O3", "-march=native"]
MODES = {
    "plain": "one tuple at a time, nothing fetched ahead",
    "batched": "batches of 128 tuples hashed and prefetched ahead",
}


def main() -> None:
    parser = common.arguments(__doc__)
    common.add_cut(parser)
    args = parser.parse_args()
    compiler = shutil.which("g++")
    if compiler is None:
        raise SystemExit("g++ is not installed")
    import numpy as np

    version = child.run([compiler, "-dumpfullversion"], 30).strip()
    sides = common.read(args.left, args.right, args.max_event_s)
    right_count = common.expected(*sides, args.within_us)
    with tempfile.TemporaryDirectory(prefix="peer-cpp-") as name:
        program = f"{name}/reference"
        source = Path(__file__).with_name("reference.cpp")
        child.run([compiler, *FLAGS, str(source), "-o", program], args.timeout_s)
        files = []
        for index, (ts, key) in enumerate(sides):
            files.append(f"{name}/{index}.bin")
            np.stack([ts, key], axis=1).astype("<i8").tofile(files[-1])
        for mode, words in MODES.items():
            out = child.run([program, mode, *files, str(args.within_us), str(args.repeat)], args.timeout_s)
            found = json.loads(out)
            print(f"{mode}: {found}", file=sys.stderr)
            text = (
                f"1 thread, symmetric hash join in time order, {words}; digest {found['digest']}; columns in memory, no Parquet"
            )
            common.report(f"C++ {mode}", f"g++ {version}", text, found["count"], found["seconds"], found["tuples"], right_count)


if __name__ == "__main__":
    main()
