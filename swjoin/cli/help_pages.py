"""What `swjoin COMMAND --help` shows besides each option: groups of options with their names, and examples.

What: `GROUPS`, `MESSAGES`, `EXAMPLES`, `arrange`.
Why: thirty options in one list are not read; an example is copied. tests/cli/test_help.py runs every example.
Stays out: the options themselves (`cli.main`).
"""

from __future__ import annotations

import argparse

_RANKS = "-n --hostfile --threads --gateways --sinks"
_CONNECTION = "--token-file --root-certificate"
_GRPC = "grpc://127.0.0.1:8815"
_TRIPS = "trips.csv payments.csv --on user --left-time started --right-time paid"
_NO_KEYS = "trips.csv payments.csv --left-time started --right-time paid"
_PAID = """'SELECT t.user, t.km, p.eur FROM t JOIN p
      ON t.user = p.user AND p.paid BETWEEN t.started AND t.started + INTERVAL 1 HOUR'"""

# Title -> options; all commands have `MESSAGES`, too. What is in no group stays under `other options`.
MESSAGES = "-v -q --log-json --debug"
GROUPS: dict[str, dict[str, str]] = {
    "join": {
        "keys and times": "--on --left-on --right-on --left-time --right-time --time-unit --left-time-unit --right-time-unit "
        "--assume-timezone",
        "files of text": "--csv --left-csv --right-csv",
        "matching": "--within --lower --upper --exclusive --last --how --match --where",
        "views": "--agg --group-by --every",
        "rows": "--max-out-of-order --sort --late --left-id --right-id",
        "output": "-o --format --columns --report",
        "execution": "-n --threads --gateways --sinks --routing --units --memory --epoch --pace --partitions --theta "
        "--communication",
    },
    "query": {
        "tables": "--table --assume-timezone --max-out-of-order --sort --late",
        "output": "-o --format --report",
        "execution": "-n --threads --gateways --sinks --strategy --routing --units --memory --epoch --partitions",
    },
    "rdf": {
        "streams and graphs": "--stream --static --malformed",
        "output": "-o --format --report",
        "execution": "-n --threads --gateways --sinks --strategy --memory --epoch --partitions",
    },
    "run": {"configuration": "--set --resume", "execution": _RANKS, "output and monitoring": "--out --dashboard"},
    "serve": {
        "configuration": "--set --resume --listen",
        "execution": _RANKS,
        "output and monitoring": "--out --dashboard",
    },
    "push": {
        "connection": f"{_CONNECTION} --retry",
        "rows": "--producer --rate --batch --keep-open --assume-timezone",
    },
    "tail": {"connection": f"{_CONNECTION} --retry", "results": "--query --from --final --format --count -o"},
    "top": {"connection": _CONNECTION, "output": "--once"},
    "generate": {
        "workload": "--workload --seed",
        "streams": "--rate --duration --bias --domain --payload --drift --schedule",
        "events": "--events --users",
        "output": "-o",
        "execution": "--engine --spark-master",
    },
    "events": {"filters": "--kind --slave --group"},
    "sweep": {"points": "--preset --repeat --only --set", "runs": "--hostfile", "output": "--out --fresh --dry-run"},
    "simulate": {
        "run": "--slaves -n --set --search --limit --saturate --balance",
        "cost model": "--costs --cost --host-cores --profile",
        "output": "--out",
    },
    "plan": {
        "run": "-n --threads --gateways --sinks --set",
        "inputs of files": "--rate --row",
        "cost model": "--costs --host-cores",
        "number of slaves for a rate": "--target-rate --target-delay --most-slaves",
        "output": "--json",
    },
    "queries": {"changes": "--timeout", "output": "--json"},
    "place": {"placement": "-k --policy --objective --imbalance", "counts": "--history", "output": "--json"},
    "explain": {"run": "-n --threads --gateways --sinks --set", "output": "--json"},
    "init": {"columns of the inputs": "--on --left-time --right-time --time-unit --assume-timezone", "matching": "--within"},
    "doctor": {"checks": "-n --hostfile --dir --limit", "output": "--json"},
}
EXAMPLES: dict[str, tuple[str, ...]] = {
    "join": (
        f"swjoin join {_TRIPS} \\\n      --lower -10min --upper 1h30m -o pairs.parquet",
        f"swjoin join {_TRIPS} \\\n      --within 1h --how left --where 'left_km < right_eur' -o trips_with_payments.csv",
        f"swjoin join {_TRIPS} \\\n      --within 2h --sort -o - > pairs.csv",
        f"swjoin join {_NO_KEYS} \\\n      --within 1h --where 'abs(left_km - right_eur) <= 1' -o near.parquet",
        f"swjoin join {_TRIPS} \\\n      --within 1h --agg 'sum(eur) AS eur' --group-by user --every 1d -o views.csv",
        f"swjoin join {_TRIPS} \\\n      --last 100 -n 4 -o count --report report.json",
    ),
    "query": (
        f"swjoin query {_PAID} \\\n      --table t=trips.csv:started --table p=payments.csv:paid -o paid.parquet",
        "swjoin query 'SELECT user, km * 0.62 AS miles FROM t WHERE km >= 3' --table t=trips.csv:started -o - > long.csv",
        "swjoin query paid.sql --table t=trips.csv:started --table p=payments.csv:paid -n 4 -o count --report report.json",
        "swjoin query paid.sql long.sql --table t=trips.csv:started --table p=payments.csv:paid -o rows.parquet",
    ),
    "rdf": (
        "swjoin rdf likes.rq --stream http://example.org/posts=posts.txt --stream http://example.org/likes=likes.txt \\\n"
        "      --static http://example.org/people=people.ttl -o likes.parquet",
        "swjoin rdf likes.rq --stream http://example.org/posts=posts.txt --stream http://example.org/likes=likes.txt \\\n"
        "      --static http://example.org/people=people.ttl -n 4 -o count --report report.json",
    ),
    "run": (
        "swjoin run mpi_configs/local.yaml",
        "swjoin run mpi_configs/local.yaml -n 4 --set workload.duration=5s --out runs/first",
        "swjoin run mpi_configs/local.yaml --threads 2 --dashboard",
    ),
    "serve": (
        "swjoin serve live.yaml --out runs/live --dashboard",
        "swjoin serve live.yaml --listen 127.0.0.1:8815 --threads 2",
    ),
    "push": (f"swjoin push {_GRPC} left trips.csv", f"swjoin push {_GRPC} right payments.csv --rate 1000 --retry 30s"),
    "tail": (
        f"swjoin tail {_GRPC} --from start --count 2 --format csv",
        f"swjoin tail {_GRPC} metrics --count 1",
        f"swjoin tail {_GRPC} -o results",
    ),
    "generate": (
        "swjoin generate --rate 1000 --duration 10s -o streams",
        "swjoin generate --rate 1000 --duration 1min --schedule burst,factor=4,period=10s,length=1s -o bursts",
        "swjoin generate --workload nexmark --events 1000000 --engine local -o auction",
        "swjoin generate --workload lsbench --events 200000 --users 5000 --engine local -o network",
    ),
    "verify": ("swjoin verify runs/first",),
    "aggregate": ("swjoin aggregate runs/first",),
    "events": ("swjoin events runs/latest", "swjoin events runs/latest --kind activated rested --slave 0"),
    "top": (f"swjoin top {_GRPC} --once", "swjoin top runs/live --once"),
    "plot": ("swjoin plot runs/latest",),
    "sweep": (
        "swjoin sweep experiments/fig07.yaml --preset quick --dry-run",
        "swjoin sweep experiments/main.yaml --only 1 --set workload.duration=5s --out runs/sweep",
    ),
    "simulate": (
        "swjoin simulate mpi_configs/local.yaml --slaves 8",
        "swjoin simulate mpi_configs/local.yaml --slaves 8 --costs modern-10g --set cluster.gateways=4",
        "swjoin simulate mpi_configs/thousand.yaml --slaves 16 --costs modern-10g --search --set workload.duration=1s",
    ),
    "plan": (
        "swjoin plan mpi_configs/local.yaml -n 6",
        "swjoin plan mpi_configs/local.yaml --target-rate 100000 --target-delay 1s",
    ),
    "queries": (
        "swjoin queries runs/night",
        "swjoin queries runs/night add far.sql rare.sql",
        "swjoin queries runs/night drop long",
    ),
    "place": (
        "swjoin place traffic.json -k 2",
        "swjoin place traffic.json -k 2 --history monday.json tuesday.json --json > placement.json",
    ),
    "explain": (
        "swjoin explain mpi_configs/local.yaml -n 6",
        "swjoin explain live.yaml --set time.late=drop --json",
        "swjoin explain runs/latest -n 6",
    ),
    "report": ("swjoin report runs/latest", "swjoin report runs/latest -o report.html"),
    "calibrate": ("swjoin calibrate --quick -o costs.yaml",),
    "init": ("swjoin init", "swjoin init rides.yaml trips.csv payments.csv --within 1h30m"),
    "schema": ("swjoin schema > swjoin.schema.json",),
    "completion": (
        "swjoin completion bash > ~/.local/share/bash-completion/completions/swjoin",
        "swjoin completion zsh > ~/.zfunc/_swjoin",
    ),
    "doctor": ("swjoin doctor", "swjoin doctor -n 4 --dir runs --json"),
    "kernels": ("swjoin kernels",),
}


class HelpFormatter(argparse.HelpFormatter):
    """argparse's formatter, which leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:\n") else super()._fill_text(text, width, indent)


def arrange(command: str, parser: argparse.ArgumentParser) -> None:
    """Put the command's options into their groups, the rest last, and its examples below."""
    others = parser._optionals
    parser._action_groups.remove(others)
    for title, options in {**GROUPS.get(command, {}), "messages": MESSAGES}.items():
        group = parser.add_argument_group(title)
        for option in options.split():
            action = parser._option_string_actions[option]
            others._group_actions.remove(action)
            group._group_actions.append(action)
    others.title = "other options"
    parser._action_groups.append(others)
    parser.formatter_class = HelpFormatter
    if command in EXAMPLES:
        parser.epilog = "examples:\n" + "\n".join(f"  {example}" for example in EXAMPLES[command])
