"""The parser of the `swjoin` command and where errors become exit codes.

What: `main(argv) -> exit code`. `swjoin ... | head` ends quietly, with the code of a process that SIGPIPE ended.
Why: `swjoin --help` must be instant, so nothing heavy is imported here; commands import what they need.
Stays out: what the commands do: `run_COMMAND` in the module of that name, or in that of `_MODULES`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import NoReturn, cast

from swjoin.cli.help_pages import arrange
from swjoin.cli.parser import Parser, positive
from swjoin.core import stdio
from swjoin.core.errors import NotWritten, SwjoinError
from swjoin.core.platforms import signals_named

_MODULES = {"calibrate": "simulate", "push": "serve", "rank": "run", "tail": "serve"}  # commands without a module of their own
CONFIG = "the configuration, a file or one that comes with swjoin, such as mpi_configs/local.yaml"
CONFIG_OR_RUN = f"{CONFIG}; or an earlier run, its directory or run.json"
TEXT_KEYS = "delimiter, nulls, encoding, times, types, schema"
TIME_UNITS = ["s", "ms", "us", "ns"]
HOWS = ["inner", "left", "right", "full", "semi", "anti"]  # as in `core.join_semantics`, which takes too long to import here
MATCHES = ["all", "last", "first", "nearest"]


def build_parser(*, log_json: bool = False) -> argparse.ArgumentParser:
    """log_json: what is wrong with the command line is told in lines of JSON."""
    parser = Parser(
        prog="swjoin",
        description="Exact sliding-window joins of two streams, in one process or on an MPI cluster.",
        log_json=log_json,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _add_messages(parser, default=False)
    parser_class = cast("type[Parser]", partial(Parser, log_json=log_json))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=parser_class)
    _add_join(commands.add_parser("join", help="join two files or directories (Parquet, CSV, Arrow IPC)"))
    _add_run(commands.add_parser("run", help="run a cluster as configured in a YAML file"))
    _add_query(commands.add_parser("query", help="run an SQL query over files (joins within bounds of time, filters, unions)"))
    _add_rdf(commands.add_parser("rdf", help="run a query over RDF streams in files (SPARQL with windows)"))
    _add_serve(commands.add_parser("serve", help="join live streams, and give the results to whoever asks, over Arrow Flight"))
    _add_push(commands.add_parser("push", help="push a file's rows into a live run"))
    _add_tail(commands.add_parser("tail", help="follow the results of a live run"))
    _add_generate(commands.add_parser("generate", help="write two b-model streams, or Nexmark's tables, as Parquet"))
    verify = commands.add_parser("verify", help="recompute the result of a run with DuckDB or Spark and compare")
    verify.add_argument("dir", metavar="DIR", help="directory of a run")
    aggregate = commands.add_parser("aggregate", help="turn the metrics of runs and sweeps into tables")
    aggregate.add_argument("dirs", metavar="DIR", nargs="+", help="directory of a run or of a sweep")
    _add_events(commands.add_parser("events", help="tell what a run decided: moves, occupancies, active slaves"))
    _add_top(commands.add_parser("top", help="look at a running join in the terminal"))
    _add_plot(commands.add_parser("plot", help="draw the figures of a run, or the figure of an experiment"))
    for command in (verify, aggregate):
        command.add_argument(
            "--engine",
            choices=["duckdb", "spark"],
            help="duckdb: on this machine, without Java (default, where it is installed)",
        )
        command.add_argument("--spark-master", metavar="URL", help="Spark master (default: local[*])")
    _add_sweep(commands.add_parser("sweep", help="run an experiment: all points of its axes, or a search at each"))
    _add_simulate(commands.add_parser("simulate", help="foretell a run of many slaves in virtual time, by a cost model"))
    _add_plan(
        commands.add_parser("plan", help="foretell a run: memory of each rank, network, delay, saturation; ranks for a rate")
    )
    _add_queries(commands.add_parser("queries", help="list a run's queries; add queries while it goes on, and drop them"))
    _add_place(commands.add_parser("place", help="put the tasks of a graph on machines, by what they send each other"))
    _add_explain(commands.add_parser("explain", help="say in words and a diagram what a configuration or a plan will do"))
    _add_report(commands.add_parser("report", help="one HTML file about a run: verdict, figures, tables"))
    _add_calibrate(commands.add_parser("calibrate", help="measure this machine's costs for simulate"))
    _add_doctor(commands.add_parser("doctor", help="check this machine or these hosts, and say how to mend what is wrong"))
    _add_kernels(commands.add_parser("kernels", help="tell where compiled kernels are kept; compile or delete them"))
    _add_init(commands.add_parser("init", help="write a first configuration"))
    commands.add_parser(
        "schema", help="print the JSON Schema of configurations, for editors"
    ).description = "Print the JSON Schema of the YAML file of run, serve, plan, simulate and explain (mpi_configs/README.md)."
    completion = commands.add_parser("completion", help="print a script that completes commands and options in a shell")
    completion.add_argument("dialect", choices=["bash", "zsh", "tcsh"], help="of the shell that reads the script")
    rank = commands.add_parser("_rank")
    rank.add_argument("job", metavar="JOB.json")
    rank.add_argument("--progress", action="store_true")
    for name, command in commands.choices.items():
        _add_messages(command, default=argparse.SUPPRESS)
        arrange(name, command)
    return parser


def _add_messages(p: argparse.ArgumentParser, default: object) -> None:
    """default: SUPPRESS in the parser of a command, which would replace what stands before the command."""
    for names, text in (
        (("-v", "--verbose"), "print details: files, fragments, engine, sizes, times of phases"),
        (("-q", "--quiet"), "print results and errors alone: no progress, notices, warnings and summary"),
        (("--log-json",), "print messages as lines of JSON"),
        (("--debug",), "print tracebacks and the launcher's own messages"),
    ):
        p.add_argument(*names, action="store_true", default=default, help=text)


def _add_join(p: argparse.ArgumentParser) -> None:
    p.description = "Join LEFT and RIGHT: equal keys and lower <= right time - left time <= upper, each pair exactly once."
    p.add_argument(
        "left",
        metavar="LEFT",
        help="file, directory, glob or URI of the left stream, or several with commas: Parquet, ORC, CSV, TSV, JSON lines, "
        "Arrow IPC",
    )
    p.add_argument("right", metavar="RIGHT", help="of the right stream")
    p.add_argument("--on", metavar="KEY", nargs="+", action="extend", help="join columns of both sides")
    p.add_argument("--left-on", metavar="KEY", nargs="+", action="extend", help="join columns on the left, if they differ")
    p.add_argument("--right-on", metavar="KEY", nargs="+", action="extend", help="join columns on the right")
    p.add_argument("--left-time", metavar="COL", required=True, help="time column on the left")
    p.add_argument("--right-time", metavar="COL", required=True, help="time column on the right")
    p.add_argument("--time-unit", choices=TIME_UNITS, help="unit of integer time columns")
    p.add_argument("--left-time-unit", choices=TIME_UNITS, help="unit of the left time column, if they differ")
    p.add_argument("--right-time-unit", choices=TIME_UNITS, help="unit of the right time column")
    p.add_argument("--assume-timezone", metavar="ZONE", help="times without a zone are local times of it: Europe/Berlin")
    p.add_argument("--csv", metavar="KEY=VALUE", action="append", help=f"how text is read: {TEXT_KEYS}")
    p.add_argument("--left-csv", metavar="KEY=VALUE", action="append", help="how text on the left is read, if they differ")
    p.add_argument("--right-csv", metavar="KEY=VALUE", action="append", help="how text on the right is read")
    p.add_argument("--within", metavar="6h", help="window on both sides: lower = -W, upper = +W; unbounded: all rows of both")
    p.add_argument("--lower", metavar="-1h", help="lowest right time - left time")
    p.add_argument("--upper", metavar="2h", help="highest right time - left time")
    p.add_argument("--exclusive", metavar="lower,upper", default="", help="bounds that do not count themselves")
    p.add_argument(
        "--last", metavar="N", help="count windows instead: the last N tuples of the other stream; or N_LEFT,N_RIGHT"
    )
    p.add_argument("--how", choices=HOWS, default="inner", help="which rows come out (default inner)")
    p.add_argument(
        "--match",
        choices=MATCHES,
        default="all",
        help="as-of joins: of the right rows that match a left one, the last at or before it, the first at or after it, or the "
        "nearest in time (default all)",
    )
    p.add_argument(
        "--where", metavar="CONDITION", help="what else must hold of a pair, or without --on alone: 'left_price < right_price'"
    )
    p.add_argument(
        "--agg",
        metavar="ITEMS",
        help="write views of the pairs so far instead of pairs: 'count(*) AS n, sum(right_eur) AS eur'",
    )
    p.add_argument("--group-by", metavar="COL", nargs="+", action="extend", help="columns that group the pairs of views")
    p.add_argument("--every", metavar="1s", help="time from one view to the next")
    p.add_argument("--left-id", metavar="COL", help="row id column on the left (default: position)")
    p.add_argument("--right-id", metavar="COL", help="row id column on the right")
    p.add_argument(
        "--columns", metavar="COL", nargs="+", action="extend", help="columns to keep, of either side (default: all)"
    )
    _add_disorder(p, "both inputs")
    p.add_argument("--epoch", metavar="1s", help="distribution epoch (default: by buffered tuples; 200ms in realtime pace)")
    p.add_argument("--pace", choices=["asap", "realtime"], default="asap", help="as fast as it goes, or at the rows' times")
    p.add_argument("--theta", metavar="32KB", help="partition tuning parameter (default: 32KB)")
    p.add_argument(
        "--communication",
        choices=["overlapped", "synchronous"],
        default="overlapped",
        help="whether a slave receives while it joins",
    )
    p.add_argument("--memory", metavar="4GB", help="limit of the window state of one slave")
    _add_routing(p)
    _add_execution(p)


def _add_routing(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--routing",
        metavar="ROUTING",
        help="how rows find their partners: hash, skew, range, broadcast, matrix[:M,N], random[:M,N] or contrand:M,N,D,E "
        "(default: auto, by the condition)",
    )
    p.add_argument(
        "--units",
        metavar="N",
        type=int,
        help="of each subgroup of units (routing random, contrand) so many store at first, others when memory needs them "
        "(default: all, always)",
    )


def _add_query(p: argparse.ArgumentParser) -> None:
    p.description = "Run an SQL query over streams in files, in one process or on MPI ranks (docs/queries.md)."
    p.add_argument(
        "queries",
        metavar="SQL|FILE.sql",
        nargs="+",
        help="the query, or a file that holds it; several files are queries of one run, which have the files' names, and their "
        "rows are in folders of these names",
    )
    p.add_argument(
        "--table",
        dest="tables",
        metavar="NAME=PATH[:TIME[:UNIT]]",
        action="append",
        help="a table: a file, a directory or a pattern, and its time column; of integers with their unit (s, ms, us, ns); "
        "without a time a static table, which is read whole",
    )
    p.add_argument("--assume-timezone", metavar="ZONE", help="times without a zone are local times of it: Europe/Berlin")
    _add_disorder(p, "all tables")
    _add_plan_settings(p)
    _add_routing(p)
    _add_execution(p)


def _add_rdf(p: argparse.ArgumentParser) -> None:
    p.description = "Run queries over RDF streams in files, in one process or on MPI ranks (docs/rdf.md)."
    p.add_argument(
        "queries",
        metavar="QUERY.rq",
        nargs="+",
        help="a file that holds the query, or the query; several files are queries with the names of the files",
    )
    p.add_argument(
        "--stream",
        dest="streams",
        metavar="IRI=PATH",
        action="append",
        help="a stream: Parquet or CSV with columns ts, s, p, o, or lines `ts <s> <p> <o> .` (.txt); .gz of each",
    )
    p.add_argument(
        "--static", metavar="IRI=PATH", action="append", help="a static graph: as a stream, or .nt, .nq, .ttl, .trig; no times"
    )
    p.add_argument(
        "--malformed",
        choices=["error", "drop", "side"],
        default="drop",
        help="lines that are no triples: end the run, leave them out, or write them beside the answer (default: drop)",
    )
    _add_plan_settings(p)
    _add_execution(p)
    p.set_defaults(max_out_of_order="0us", sort=False, late="error", units=None, routing=None)


def _add_plan_settings(p: argparse.ArgumentParser) -> None:
    p.add_argument("--epoch", metavar="1s", help="distribution epoch (default: by buffered tuples)")
    p.add_argument("--memory", metavar="4GB", help="limit of the window state of one instance")
    p.add_argument(
        "--strategy",
        choices=["subquery", "query", "operator"],
        help="slaves play one stage each (subquery, the default), all stages (query), or one operator each (operator)",
    )


def _add_disorder(p: argparse.ArgumentParser, inputs: str) -> None:
    p.add_argument(
        "--max-out-of-order", metavar="10s", default="0us", help="how far a row's time may lie behind an earlier row's"
    )
    p.add_argument("--sort", action="store_true", help=f"sort the rows of {inputs} by time, on disk where they are many")
    p.add_argument("--late", choices=["error", "drop", "side"], default="error", help="rows later than that, or without a time")


def _add_execution(p: argparse.ArgumentParser) -> None:
    """Of commands with results at -o."""
    p.add_argument("--partitions", metavar="N", type=int, help="partition-groups")
    p.add_argument(
        "-n", dest="ranks", metavar="RANKS", type=int, help="MPI ranks: master, collector, slaves (default: in-process)"
    )
    _add_threads(p)
    _add_role_counts(p)
    p.add_argument(
        "-o", dest="out", metavar="OUT", required=True, help="OUT.parquet, OUT.csv, OUT.csv.gz, count, or - for a pipe"
    )
    p.add_argument("--format", choices=["csv", "arrow"], help="with -o -: CSV (default) or an Arrow IPC stream")
    p.add_argument("--report", metavar="REPORT.json", help="write the run's report there")


def _add_threads(p: argparse.ArgumentParser) -> None:
    default = "one per core but one, at most 4; for a count two on two cores"
    p.add_argument("--threads", metavar="N", type=int, help=f"slaves in one process (default: {default})")


def _add_role_counts(p: argparse.ArgumentParser) -> None:
    p.add_argument("--gateways", metavar="N", type=int, help="how many gateways read the inputs, split by split (default 1)")
    p.add_argument("--sinks", metavar="M", type=int, help="how many sinks write results, each its share (default 1)")


def _add_ranks(p: argparse.ArgumentParser) -> None:
    p.add_argument("-n", dest="ranks", metavar="RANKS", type=int, help="MPI ranks (default: in-process)")


def _add_overrides(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--set", dest="overrides", metavar="path.to.key=value", action="append", default=[], help="override a key of the file"
    )


def _add_run(p: argparse.ArgumentParser) -> None:
    p.description = "Run a cluster as configured; also: mpirun -n RANKS python -m swjoin run CONFIG.yaml"
    p.add_argument("config", metavar="CONFIG.yaml", nargs="?", help=CONFIG)
    p.add_argument("--resume", metavar="DIR", help="go on from the last checkpoint of a run, on as many ranks as you like")
    _add_overrides(p)
    _add_ranks(p)
    p.add_argument("--hostfile", metavar="F", help="with -n: ranks on these hosts (HOST slots=N per line); all share --out")
    _add_threads(p)
    _add_role_counts(p)
    p.add_argument("--out", metavar="DIR", help="directory of the run (default: a new one in runs; runs/latest leads to it)")
    add_dashboard(p)


def add_dashboard(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--dashboard",
        metavar="PORT",
        type=int,
        nargs="?",
        const=0,
        help="serve a page on 127.0.0.1 to look on (default: a free port)",
    )


def _add_top(p: argparse.ArgumentParser) -> None:
    p.description = "Look at a run that was started with --dashboard: rates, delay, slaves, hot keys, events. q ends it."
    p.add_argument(
        "address",
        metavar="ADDRESS|PORT|DIR",
        nargs="?",
        default="runs/latest",
        help="of the page, the run's directory, or grpc://...",
    )
    p.add_argument("--once", action="store_true", help="print how things stand, and end")
    _add_secrets(p)


def _add_serve(p: argparse.ArgumentParser) -> None:
    _add_run(p)
    p.description = "Run a cluster over live streams; producers push and consumers take over Arrow Flight (docs/live.md)."
    p.add_argument("--listen", metavar="HOST:PORT", help="of the endpoint (default: as configured, or 127.0.0.1:8815)")


def _add_secrets(p: argparse.ArgumentParser) -> None:
    p.add_argument("--token-file", metavar="FILE", help="what the live run wants to see")
    p.add_argument("--root-certificate", metavar="FILE", help="that signed the live run's certificate (PEM)")


def _add_client(p: argparse.ArgumentParser) -> None:
    p.add_argument("address", metavar="ADDRESS", help="of the run: grpc://HOST:PORT, or grpc+tls://HOST:PORT")
    _add_secrets(p)
    p.add_argument("--retry", metavar="30s", default="0s", help="how long to try again when nobody answers (default: not)")


def _add_push(p: argparse.ArgumentParser) -> None:
    p.description = "Push rows into a live run, in their order; after a loss of the connection go on where they were accepted."
    _add_client(p)
    p.add_argument("stream", metavar="STREAM", help="left or right, or the name of a query's input")
    p.add_argument("file", metavar="FILE", help="Parquet, CSV, Arrow IPC, a directory of them, or - (Arrow IPC stream)")
    p.add_argument("--producer", metavar="NAME", help="under which to go on later (default: the file's name)")
    p.add_argument("--rate", metavar="R", type=positive, help="rows per second (default: as fast as they are taken)")
    p.add_argument("--batch", metavar="ROWS", type=int, default=16_384, help="rows of a message")
    p.add_argument("--keep-open", action="store_true", help="more rows of this producer will follow later")
    p.add_argument("--assume-timezone", metavar="ZONE", help="times without a zone are local times of it: Europe/Berlin")


def _add_tail(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Print results as they come, or keep final ones in files; a tail that is started again goes on in its folder."
    )
    _add_client(p)
    p.add_argument(
        "what", choices=["results", "late", "metrics"], nargs="?", default="results", help="what to follow (default results)"
    )
    p.add_argument("--query", metavar="NAME", help="whose results, of a run whose queries have names")
    p.add_argument("--from", dest="start", choices=["start", "now"], help="where to begin (default now)")
    p.add_argument("--final", action="store_true", help="only what no crash can take back: after each checkpoint")
    p.add_argument("--format", choices=["json", "csv"], help="of lines (default json)")
    p.add_argument("--count", metavar="N", type=int, help="end after so many rows")
    p.add_argument("-o", dest="out", metavar="FOLDER", help="a Parquet file for every checkpoint, each row exactly once")


def _add_generate(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Write a workload as Parquet: two streams of the b-model; Nexmark's person, auction, bid and side_input; or LSBench's "
        "five streams of triples and the graph of who knows whom."
    )
    p.add_argument(
        "--workload", choices=["bmodel", "nexmark", "lsbench"], default="bmodel", help="two streams (default: bmodel)"
    )
    p.add_argument("--rate", metavar="R", type=positive, help="mean tuples per second and stream")
    p.add_argument("--duration", metavar="60s", help="length of the streams")
    p.add_argument("--bias", type=positive, help="b of the b-model, 0.5 to 1 (default 0.7)")
    p.add_argument("--domain", type=int, help="keys are integers in [0, domain) (default 10000000)")
    p.add_argument("--payload", metavar="48B", help="payload of a tuple (default 48B)")
    p.add_argument("--drift", metavar="10s", help="after every such time other keys are hot (default: never)")
    p.add_argument("--seed", type=int, default=1, help="of the random numbers (default 1)")
    p.add_argument(
        "--schedule",
        metavar="KIND[,key=value...]",
        help="constant (default) | step,factor=2,at=30s | sine,amplitude=0.5,period=60s | burst,factor=4,period=10s,length=1s",
    )
    p.add_argument(
        "--events", metavar="N", type=int, help="of Nexmark: of 50 one is a person, 3 are auctions, 46 bids; of LSBench"
    )
    p.add_argument("--users", metavar="N", type=int, help="of LSBench (default 10000)")
    p.add_argument("-o", dest="out", metavar="DIR", required=True, help="directory of the streams or tables, one folder each")
    p.add_argument("--engine", choices=["spark", "local"], default="spark", help="local: Nexmark or LSBench in this process")
    p.add_argument("--spark-master", metavar="URL", help="Spark master (default: local[*])")


def _add_plot(p: argparse.ArgumentParser) -> None:
    p.description = "Figures as PNG and SVG: how a run went over time, or what an experiment's sweep found."
    p.add_argument("target", metavar="DIR|EXPERIMENT.yaml", help="directory of a run, or an experiment that was aggregated")
    p.add_argument("--sweep", metavar="DIR", help="directory of the experiment's sweep (default: runs/sweeps/NAME-PRESET)")
    p.add_argument("-o", dest="out", metavar="FOLDER", help="where an experiment's figure goes (default: plots in the sweep)")


def _add_sweep(p: argparse.ArgumentParser) -> None:
    p.description = "Run what an experiment asks, one run after the other; the same command goes on where it was interrupted."
    p.add_argument("experiment", metavar="EXPERIMENT.yaml", help="a file, or one that comes with swjoin")
    p.add_argument("--preset", choices=["paper", "quick", "none"], help="instead of the experiment's own")
    p.add_argument("--repeat", metavar="K", type=int, help="how often every point is run, with other seeds")
    p.add_argument("--out", metavar="DIR", help="directory of the sweep (default: runs/sweeps/NAME-PRESET)")
    p.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    p.add_argument("--only", metavar="N", type=int, help="the first N points alone")
    p.add_argument("--hostfile", metavar="F", help="MPI ranks of every run on these hosts (HOST slots=N per line)")
    p.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a configuration key at all points, or a key of the experiment, such as measured=2s",
    )
    p.add_argument("--dry-run", action="store_true", help="list the points and how long they take")


def _add_simulate(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Foretell a run: the real roles and policies in virtual time, over counts of tuples; of a plan of several stages "
        "from what an earlier run measured (docs/simulation.md)."
    )
    p.add_argument("config", metavar="CONFIG.yaml|RUN", help=CONFIG_OR_RUN)
    size = p.add_mutually_exclusive_group(required=True)
    size.add_argument("--slaves", metavar="N", type=int, help="how many slaves the run has; other roles get ranks of their own")
    size.add_argument("-n", dest="ranks", metavar="RANKS", type=int, help="how many MPI ranks the run has, with all roles")
    p.set_defaults(threads=None)
    _add_overrides(p)
    p.add_argument("--costs", metavar="NAME|FILE", default="modern", help="modern, modern-10g, paper, streamcloud, or a file")
    p.add_argument(
        "--cost", dest="changes", metavar="NAME=VALUE", action="append", default=[], help="change one cost; NAME=*2 doubles it"
    )
    p.add_argument(
        "--host-cores", metavar="N", type=int, default=0, help="all ranks share so many cores (default: each has one)"
    )
    p.add_argument(
        "--search", action="store_true", help="how many slaves the gateways can feed: 1, 2, 4, ... up to --slaves, asap"
    )
    p.add_argument("--limit", metavar="60s", help="end after so much virtual time")
    p.add_argument(
        "--profile",
        dest="profiles",
        metavar="RUN",
        action="append",
        default=[],
        help="of a query: a run of it, which tells its costs; given twice, two runs at different rates tell more",
    )
    p.add_argument("--saturate", action="store_true", help="of a query: at the highest rate that is sustained, with more keys")
    p.add_argument("--balance", action="store_true", help="with --saturate: as many of the N slaves are gateways as is best")
    p.add_argument("--out", metavar="DIR", help="write simulation.json and metrics there")


def _add_plan(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Foretell the bytes that each rank of a run will take, what goes over the network, the production delay and the "
        "highest rate that is sustained; of an earlier run of a plan of several stages rates, windows and loads of every stage "
        "(docs/planning.md). Exit code 1: the windows do not fit."
    )
    p.add_argument("config", metavar="CONFIG.yaml|RUN", help=CONFIG_OR_RUN)
    _add_ranks(p)
    _add_threads(p)
    _add_role_counts(p)
    _add_overrides(p)
    p.add_argument(
        "--rate", metavar="R|L,R", help="tuples per second of each stream of files, or of each source of an earlier run's plan"
    )
    p.add_argument("--row", metavar="48B", help="payload of a row of files (default: by the schema and the first rows)")
    p.add_argument("--costs", metavar="NAME|FILE", default="modern", help="modern, modern-10g, paper, streamcloud, or a file")
    p.add_argument(
        "--host-cores", metavar="N", type=int, help="all ranks share so many cores (default: this machine's; 0: each has one)"
    )
    p.add_argument("--target-rate", metavar="R", type=positive, help="how many slaves sustain so many tuples/s of each stream")
    p.add_argument("--target-delay", metavar="500ms", help="and bring 99 %% of the pairs within this delay")
    p.add_argument("--most-slaves", metavar="N", type=int, default=64, help="but no more slaves than this (default 64)")
    p.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_queries(p: argparse.ArgumentParser) -> None:
    p.description = (
        "The queries of a run. While it goes on, add further ones, which have the rows from now on, and drop some, which have "
        "the rows until now; the others notice a short pause (docs/many-queries.md)."
    )
    p.add_argument("dir", metavar="DIR", help="directory of a run with queries that have names, and with checkpoints")
    p.add_argument("action", choices=["list", "add", "drop"], nargs="?", default="list", help="(default: list)")
    p.add_argument("queries", metavar="QUERY", nargs="*", help="add: files NAME.sql, or NAME.rq over RDF streams; drop: names")
    p.add_argument("--timeout", metavar="S", type=positive, default=60.0, help="seconds to wait for the run (default 60)")
    p.add_argument("--json", action="store_true", help="list: print JSON, times in microseconds, instead of a table")


def _add_place(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Place tasks on machines such that the fullest has hardly more work than the mean and, within that, as little as can "
        "be goes over the network (docs/placement.md)."
    )
    p.add_argument("graph", metavar="GRAPH.json", help="tasks, and the tuples and bytes from each to each; or GRAPH.json.gz")
    p.add_argument("-k", dest="machines", metavar="K", type=int, required=True, help="number of machines")
    p.add_argument(
        "--history",
        metavar="FILE",
        nargs="+",
        action="extend",
        default=[],
        help="earlier graphs, whose counts and work decide, in sum; those of GRAPH.json are then for the printed figures alone",
    )
    p.add_argument(
        "--policy",
        choices=["network", "round_robin"],
        default="network",
        help="network: the least traffic (default); round_robin: id modulo K",
    )
    p.add_argument(
        "--objective",
        choices=["bytes", "tuples", "deliveries"],
        default="bytes",
        help="what is to be little (default bytes); deliveries: bytes, and 64 KiB for each message",
    )
    p.add_argument(
        "--imbalance",
        metavar="R",
        type=positive,
        default=1.03,
        help="how much work the fullest machine may have, over the mean (default 1.03)",
    )
    p.add_argument("--json", action="store_true", help="print JSON, with the machine of each task, instead of a table")


def _add_explain(p: argparse.ArgumentParser) -> None:
    p.description = (
        "What goes where: sources, stages and edges, time, keys, epochs, memory, overload, crashes, results. Reads no data."
    )
    p.add_argument("config", metavar="CONFIG.yaml|DIR", help=f"{CONFIG}; or an earlier run: its directory or its run.json")
    _add_ranks(p)
    _add_threads(p)
    _add_role_counts(p)
    _add_overrides(p)
    p.add_argument("--json", action="store_true", help="print JSON instead of words")


def _add_init(p: argparse.ArgumentParser) -> None:
    p.description = "Write a first configuration with comments: of generated streams, or of two inputs, by their columns."
    p.add_argument("file", metavar="FILE", nargs="?", default="swjoin.yaml", help="where it goes (default: swjoin.yaml)")
    p.add_argument("left", metavar="LEFT", nargs="?", help="file or directory of the left stream")
    p.add_argument("right", metavar="RIGHT", nargs="?", help="of the right stream")
    p.add_argument("--on", metavar="KEY", nargs="+", action="extend", help="join columns (default: the first that both have)")
    p.add_argument("--left-time", metavar="COL", help="time column on the left (default: the first of timestamps)")
    p.add_argument("--right-time", metavar="COL", help="time column on the right")
    p.add_argument("--time-unit", choices=TIME_UNITS, help="unit of integer time columns")
    p.add_argument("--assume-timezone", metavar="ZONE", help="times without a zone are local times of it: Europe/Berlin")
    p.add_argument("--within", metavar="6h", help="window on both sides (default 5s)")


def _add_report(p: argparse.ArgumentParser) -> None:
    p.description = "Verdict, rates, delays, timeline, memory, ranks and configuration of a run as one file for a browser."
    p.add_argument("dir", metavar="DIR", help="directory of a run: complete, stopped or failed")
    p.add_argument("-o", dest="out", metavar="FILE.html", help="where it goes (default: DIR/report.html)")


def _add_calibrate(p: argparse.ArgumentParser) -> None:
    p.description = "Measure what things cost on this machine, with the real roles; takes about a minute on a quiet machine."
    p.add_argument("-o", dest="out", metavar="COSTS.yaml", help="write them there, for simulate --costs")
    p.add_argument("--quick", action="store_true", help="smaller and less exact")


def _add_doctor(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Check software, MPI, links, clocks and directories, with real ranks; also: mpirun -n RANKS python -m swjoin doctor. "
        "Exit code 1: something fails."
    )
    p.add_argument("-n", dest="ranks", metavar="RANKS", type=int, help="MPI ranks to try (default: 3)")
    p.add_argument("--hostfile", metavar="F", help="with -n: ranks on these hosts (HOST slots=N per line)")
    p.add_argument("--dir", metavar="D", help="a directory that all ranks must share, such as that of the checkpoints")
    p.add_argument("--limit", metavar="S", type=positive, default=60.0, help="seconds that the ranks may take (default: 60)")
    p.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_kernels(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Say where compiled kernels are kept, in NUMBA_CACHE_DIR or the user's cache folder, and how large they are."
    )
    p.add_argument("--compile", action="store_true", help="compile all of them now, so that no join waits for the compiler")
    p.add_argument("--clear", action="store_true", help="delete them (with --compile: first)")


def _add_events(p: argparse.ArgumentParser) -> None:
    p.description = "The timeline of a run that adapted itself: what was decided when and why, and what became of it."
    p.add_argument("dir", metavar="DIR", help="directory of a run")
    p.add_argument(
        "--kind",
        dest="kinds",
        metavar="KIND",
        nargs="+",
        action="extend",
        default=[],
        help="occupancy, decided, held, left, installed, released, activated, emptying, kept, rested, shed, spilled, "
        "idle, speaks, checkpoint, recovered, key_copied, key_dealt, key_gathered, unit_opened, unit_closing, unit_closed, "
        "placed, regret, query_added, query_dropped (default: all)",
    )
    p.add_argument("--slave", metavar="N", type=int, help="only what concerns slave N")
    p.add_argument("--group", metavar="N", type=int, help="only what concerns partition-group N")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code: 0, 1 (the run failed), 2 (the user gave something wrong), 129 (SIGHUP), 130
    (interrupted), 141 (the reader has closed the pipe), 143 (SIGTERM)."""
    try:
        try:
            return _run_command_line(argv)
        finally:
            sys.stdout.flush()  # here, where it can be caught: at exit Python would complain of a closed pipe
    except BrokenPipeError:
        if not _reader_gone():
            raise
        stdio.mute([sys.stdout, sys.stderr])
        return 141
    except NotWritten as error:  # standard output; a command that noticed has reported it already
        from swjoin.core.log_lines import complaint_line

        print(complaint_line(str(error), as_json="--log-json" in _words(argv)), file=sys.stderr)
        return error.exit_code


def _words(argv: list[str] | None) -> list[str]:
    return sys.argv[1:] if argv is None else argv


def entry() -> NoReturn:
    """The command as a process. One whose endpoint has a client that does not let go would wait for it at the end."""
    stdio.prepare()
    code = main()
    endpoint = sys.modules.get("swjoin.connectors.flight.server")
    if endpoint is not None and endpoint.any_stuck():
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()  # or the launcher would take this rank for a dead one
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _reader_gone() -> bool:
    """Whether our own output is a pipe that its reader has closed; any other broken pipe is an error as others are."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class _Terminated(KeyboardInterrupt):
    """SIGTERM and SIGHUP end a command as Ctrl-C does: files are closed, processes that it started are ended.

    raised: the newest. A library may answer it with an error of its own, as numpy does while it is imported.
    """

    raised: _Terminated | None = None

    def __init__(self, number: int) -> None:
        self.number = number
        _Terminated.raised = self


def _terminate(number: int, _frame: FrameType | None) -> None:
    if number in signals_named("SIGHUP"):
        stdio.mute_terminals()
    raise _Terminated(number)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `_Terminated`; SIGHUP that is ignored (nohup) stays so."""
    numbers = [n for n in signals_named("SIGTERM", "SIGHUP") if signal.getsignal(n) != signal.SIG_IGN]
    _Terminated.raised = None
    before = {number: signal.signal(number, _terminate) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _under_a_launcher() -> bool:
    """Whether this is an MPI rank; the launcher sends SIGTERM to all when one fails, and only that one has to say why."""
    from swjoin.runtime.preflight import launcher_size

    return launcher_size() > 1


def _run_command_line(argv: list[str] | None) -> int:
    parser = build_parser(log_json="--log-json" in _words(argv))
    args = parser.parse_args(argv)
    if args.verbose and args.quiet:
        parser.error("-v and -q: give one of them")
    if args.version:
        from swjoin.core.version import __version__

        print(f"swjoin {__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    from swjoin.cli.messages import messages

    here = threading.current_thread() is threading.main_thread()
    stoppable = args.command != "_rank" and here and not _under_a_launcher()
    shown = messages(verbose=args.verbose, quiet=args.quiet, log_json=args.log_json)
    with shown, _terminable() if stoppable else nullcontext():
        return _run_command(args)


def _stopped(stop: KeyboardInterrupt) -> int:
    """Say what ended the command; returns its exit code."""
    import logging

    number = stop.number if isinstance(stop, _Terminated) else signal.SIGINT
    text = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    logging.getLogger(__name__).error("%s", text)
    return 128 + number


def _run_command(args: argparse.Namespace) -> int:
    import logging

    try:
        command = args.command.lstrip("_")
        module = importlib.import_module(f"swjoin.cli.{_MODULES.get(command, command)}")
        return int(getattr(module, f"run_{command}")(args))
    except SwjoinError as error:
        text = error.text("options" if args.command in ("join", "query", "rdf", "push", "init") else "keys")
        if text or args.debug:
            logging.getLogger(__name__).error("%s", " ".join(text.split()), exc_info=args.debug)
        return error.exit_code
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except Exception as error:
        if (args.debug and not args.log_json) or (isinstance(error, BrokenPipeError) and _reader_gone()):
            raise
        if _Terminated.raised is not None:
            return _stopped(_Terminated.raised)
        text = f"internal error: {type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)"
        logging.getLogger(__name__).error("%s", text, exc_info=args.log_json)
        return 1
