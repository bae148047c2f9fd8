"""How fast Apache Flink counts the pairs of an interval join of two Parquet files.

Compiles FlinkIntervalJoin.java against the jars of the package apache-flink-libraries and runs it in one warm JVM: the
first run warms it up and is left out of the figures. The Parquet files are turned into raw (ts, key) longs before any
clock starts, so neither Parquet nor the payload costs Flink anything. Out of scope: checkpoints, fault tolerance,
emission of the pairs, more than one machine.

    python -m benchmarks.peers.flink_join --left L.parquet --right R.parquet --within-us 10000000 --repeat 3

Needs the packages of requirements-flink.txt and a JDK (java and javac, 17 or later) on the PATH. The last line of
stdout is the result as JSON; everything else goes to stderr.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.peers import child

SOURCE = Path(__file__).with_name("FlinkIntervalJoin.java")
PACKAGES = ("util", "lang", "time", "nio")
OPEN = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in PACKAGES]
NAMES = {
    "datastream": "DataStream interval join",
    "sql": "SQL interval join",
    "broadcast": "sorted maps, right side to all",
    "multijoin": "SQL MultiJoin of three",
    "intervals": "two SQL interval joins in a row",
}


def write_raw(parquet: Path, raw: Path, until_us: int) -> int:
    """The (ts, key) of a Parquet file, of rows before a time, as little-endian longs; the number of rows."""
    table = pq.read_table(parquet, columns=["ts", "key"])
    rows = np.stack([table["ts"].to_numpy(), table["key"].to_numpy()], axis=1)
    rows = rows[rows[:, 0] < until_us]
    rows.astype("<i8").tofile(raw)
    return len(rows)


def jars() -> str:
    found = importlib.util.find_spec("pyflink")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("no Flink jars here: pip install -r requirements-flink.txt")
    return str(Path(next(iter(found.submodule_search_locations))) / "lib" / "*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--left", type=Path, required=True)
    parser.add_argument("--right", type=Path, required=True)
    parser.add_argument("--third", type=Path, help="of a star: the third file; each two tuples lie at most so far apart")
    parser.add_argument("--within-us", type=int, required=True)
    parser.add_argument("--repeat", type=int, default=3, help="measured runs, after one more that warms up")
    parser.add_argument("--api", choices=[*NAMES], default="datastream")
    parser.add_argument("--band", type=int, default=0, help="keys at most so far apart; see FlinkIntervalJoin.java")
    parser.add_argument("--until-us", type=int, default=1 << 62, help="only rows before this time")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--sources", type=int, default=2, help="parallelism of the source")
    parser.add_argument("--watermark-every", type=int, default=1000, help="tuples between two watermarks")
    parser.add_argument("--heap", default="8g", help="size of the Java heap")
    parser.add_argument("--young", default="5g", help="size of the heap's young generation")
    parser.add_argument("--timeout-s", type=float, default=900, help="seconds for all runs together")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flink-join-") as name:
        folder = Path(name)
        paths = [args.left, args.right, *([args.third] if args.third else [])]
        if (args.api in ("multijoin", "intervals")) != (len(paths) > 2):
            parser.error("multijoin and intervals are for stars, which have a third file")
        raws = [folder / name for name in ("left", "right", "third")[: len(paths)]]
        tuples = sum(write_raw(path, raw, args.until_us) for path, raw in zip(paths, raws, strict=True))
        child.run(["javac", "-nowarn", "-cp", jars(), "-d", name, str(SOURCE)], 120)
        java = [
            "java",
            f"-Xms{args.heap}",
            f"-Xmx{args.heap}",
            f"-Xmn{args.young}",
            "-XX:+UseParallelGC",
            "-XX:+AlwaysPreTouch",
        ]
        java += [f"-Djava.io.tmpdir={name}", *OPEN, "-cp", f"{jars()}:{name}", SOURCE.stem]
        job = [
            ",".join(map(str, raws)),
            args.within_us,
            args.repeat + 1,
            args.api,
            args.parallelism,
            args.sources,
            args.watermark_every,
        ]
        job.append(args.band)
        out = child.run([*java, *map(str, job)], args.timeout_s)
    seconds, counts = [], set()
    for line in out.splitlines():
        print(line, file=sys.stderr)
        if line.startswith("RUN "):
            _, wall, _, pairs = line.split()
            seconds.append(float(wall))
            counts.add(int(pairs))
    if len(seconds) != args.repeat + 1 or len(counts) != 1:
        raise SystemExit(f"runs {len(seconds)}, counts {counts}: expected {args.repeat + 1} runs of one count")
    api = NAMES[args.api] + (f", band {args.band}" if args.band else "")
    configuration = (
        f"{api}, one JVM (heap {args.heap}, young {args.young}, parallel collector), "
        f"parallelism {args.parallelism}, heap state backend, object reuse, "
        f"no checkpoints, {args.sources} source task(s) reading raw (ts, key) merged by time, "
        f"watermark every {args.watermark_every} tuples, pairs counted and not emitted, first run left out as warm-up"
    )
    result = {
        "system": f"Apache Flink ({args.api})",
        "version": version("apache-flink-libraries"),
        "configuration": configuration,
        "count": counts.pop(),
        "seconds": [round(value, 3) for value in seconds[1:]],
        "tuples": tuples,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
