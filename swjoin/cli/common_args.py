"""Arguments shared by several commands: ranks or threads, and values given once or per stream.

What: `given_ranks`, `check_slave_count`, `in_process_or_ranks`, `with_role_counts`, `duration_of`, `size_of`, `one_or_two`,
`separate`, `chosen_engine`.
Why: `-n 6` and `--threads 2` mean the same to every command, and are refused with the same words.
Stays out: the parser (`cli.main`), the commands.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeVar

from swjoin.cluster.ranks import RankMap
from swjoin.config.run import RunConfig
from swjoin.config.sections import MOST_PARTITION_GROUPS
from swjoin.core.errors import UserError
from swjoin.core.units import parse_duration_us, parse_size_bytes
from swjoin.runtime.preflight import launcher_size

Number = TypeVar("Number", int, float)


def given_ranks(args: argparse.Namespace) -> int | None:
    """MPI ranks, or None. UserError for too few, or threads beside them."""
    ranks: int | None = args.ranks
    if ranks is not None:
        if ranks < 3:
            raise UserError(f"-n {ranks}: a cluster needs at least 3 ranks: master, collector and one slave")
        check_slave_count(f"-n {ranks}", ranks - 2)
    if args.threads is not None:
        check_slave_count(f"--threads {args.threads}", args.threads)
        if ranks is not None or launcher_size() > 1:
            raise UserError("--threads: on MPI every slave is a rank of its own; leave it out")
    return ranks


def check_slave_count(words: str, slaves: int) -> None:
    """UserError, with the words of the user, for a number of slaves that no run can have."""
    if slaves < 1:
        raise UserError(f"{words}: at least one slave is needed")
    if slaves > MOST_PARTITION_GROUPS:
        raise UserError(
            f"{words}: at most {MOST_PARTITION_GROUPS:,} slaves, as many as there can be partition-groups for them to own"
        )


def in_process_or_ranks(args: argparse.Namespace, config: RunConfig) -> tuple[RankMap | None, int]:
    """Which rank plays which roles, or None in one process; and how many slaves that gives."""
    from swjoin.runtime.in_process import default_slave_count

    size = given_ranks(args)
    if size is None:
        return None, args.threads or default_slave_count(writes=config.sink.kind != "count")
    ranks = RankMap.of(config, size)
    return ranks, ranks.slave_ranks


def with_role_counts(config: RunConfig, args: argparse.Namespace) -> RunConfig:
    """The same run with the numbers of --gateways and --sinks. UserError for numbers that it cannot have."""
    sinks, gateways = args.sinks, args.gateways
    if sinks is not None:
        if sinks > 1 and config.sink.kind == "count":
            raise UserError(f"--sinks {sinks}: the results of this run are only counted; leave it out")
        config = config.with_sinks(sinks)
    return config if gateways is None else config.with_gateways(gateways)


def duration_of(text: str, option: str) -> int:
    """The microseconds of an option's value. UserError, which names the option."""
    try:
        return parse_duration_us(text)
    except UserError as error:
        raise error.prefixed(option) from None


def size_of(text: str, option: str) -> int:
    """The bytes of an option's value. UserError, which names the option."""
    try:
        return parse_size_bytes(text)
    except UserError as error:
        raise error.prefixed(option) from None


def separate(words: Iterable[str] | None) -> tuple[str, ...]:
    """Names that were given as words, with commas between them, or both."""
    return tuple(name for word in words or () for name in word.split(",") if name)


def one_or_two(text: str, number: Callable[[str], Number], refusal: str) -> tuple[Number, Number]:
    """`5` for both streams, or `5,7` for left and right. UserError with `refusal` for anything else."""
    try:
        found = [number(part) for part in text.split(",")]
        left, right = found * 2 if len(found) == 1 else found
    except (ValueError, argparse.ArgumentTypeError):
        raise UserError(refusal) from None
    return left, right


def hostfile(args: argparse.Namespace) -> Path | None:
    """The file of --hostfile. UserError when it cannot be used."""
    if args.hostfile is None:
        return None
    path = Path(args.hostfile)
    if "ranks" in args and args.ranks is None:  # of a sweep the experiment knows them
        raise UserError("--hostfile: say how many ranks to start on these hosts with -n")
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"--hostfile {path}: cannot be read ({reason})") from None
    if not any(line.split("#")[0].strip() for line in lines):
        raise UserError(f"--hostfile {path}: names no host; write lines such as: node01 slots=4")
    return path.absolute()


def chosen_engine(args: argparse.Namespace) -> Literal["duckdb", "spark"]:
    """`duckdb` or `spark`: what was asked for, else DuckDB, unless Spark alone is installed. UserError for a Spark master of
    DuckDB."""
    if args.engine == "duckdb" and args.spark_master is not None:
        raise UserError("--spark-master is for --engine spark; leave one of them out")
    alone = importlib.util.find_spec("duckdb") is None and importlib.util.find_spec("pyspark") is not None
    by_spark = args.spark_master is not None or alone if args.engine is None else args.engine == "spark"
    return "spark" if by_spark else "duckdb"
