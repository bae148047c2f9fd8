"""Random SQL queries over tables a, b, c, and d, which is static, with columns k, v, x, ts, from what `frontends.sql` takes.

What: `random_query(random) -> text`; `random_inputs`; `python -m tests.tools.random_queries COUNT` runs some in process against
DuckDB.
Why: clauses break each other where no example combines them.
Stays out: running and comparing in tests (`tests.frontends`).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from swjoin.config.connectors import StreamConfig
from tests.support.plan_runs import write_streams

_KINDS = {"k": "int", "v": "int", "x": "text", "ts": "time"}


@dataclass(frozen=True)
class _From:
    """Text of an item of FROM; its columns (as written: kind), and those of them that are times of the rows."""

    text: str
    columns: dict[str, str]
    times: tuple[str, ...]


def _pick(random: np.random.Generator, of: list[str]) -> str:
    return of[int(random.integers(len(of)))]


def _of_kind(columns: dict[str, str], kind: str) -> list[str]:
    return [name for name, found in columns.items() if found == kind]


def _condition(random: np.random.Generator, columns: dict[str, str]) -> str:
    numbers, texts, times = (_of_kind(columns, kind) for kind in ("int", "text", "time"))
    made = [f"{_pick(random, numbers)} % 3 <> {random.integers(3)}", f"{_pick(random, numbers)} IS NOT NULL"]
    made += [f"{_pick(random, numbers)} < {_pick(random, numbers)} + {random.integers(400)}"]
    if texts:
        made += [f"{_pick(random, texts)} IN ('x1', 'x2', 'x5')", f"upper({_pick(random, texts)}) > 'X2'"]
        made += [f"{_pick(random, texts)} <> {_pick(random, texts)}", f"{_pick(random, texts)} LIKE 'x_'"]
    if times:
        made.append(f"extract(second FROM {_pick(random, times)}) < 1")
    found = _pick(random, made)
    return (
        f"NOT ({found})" if random.random() < 0.2 else f"({found} OR {_pick(random, made)})" if random.random() < 0.2 else found
    )


def _value(random: np.random.Generator, columns: dict[str, str], kind: str) -> str:
    names = _of_kind(columns, kind)
    plain = _pick(random, names)
    if kind == "int":
        made = [
            plain,
            plain,
            f"{plain} * 2 + 1",
            f"coalesce({plain}, -1)",
            f"CASE WHEN {plain} % 2 = 0 THEN 0 ELSE {plain} END",
        ]
    elif kind == "text":
        made = [plain, plain, f"upper({plain})", f"{plain} || '!'", f"substr({plain}, 2)"]
    else:
        made = [plain, plain, plain, f"{plain} + INTERVAL '1' SECOND"]
    return _pick(random, made)


def _table(random: np.random.Generator, alias: str, depth: int) -> _From:
    choice = random.random()
    if depth and choice < 0.35:
        inner, columns, times = _select(random, depth - 1, alias) if choice < 0.25 else _grouped(random, alias, depth - 1)
        if times:
            named = {f"{alias}.{name}": kind for name, kind in columns.items()}
            return _From(f"({inner}) {alias}", named, tuple(f"{alias}.{name}" for name in times))
    columns = {f"{alias}.{name}": kind for name, kind in _KINDS.items()}
    return _From(f"{_pick(random, list('abc'))} {alias}", columns, (f"{alias}.ts",))


def _grouped(random: np.random.Generator, prefix: str, depth: int) -> tuple[str, dict[str, str], list[str]]:
    """Groups of the windows of a table or a subquery: as `_select`."""
    source, time, columns = _pick(random, list("abc")), "ts", dict(_KINDS)
    inner, found, times = _select(random, depth - 1, prefix) if depth and random.random() < 0.5 else ("", {}, [])
    if times:
        source, time, columns = f"({inner})", _pick(random, times), found
    size = int(random.choice([7, 20, 60, 300]))
    slide = int(random.choice([size, size, max(1, size // 3), size + 5, 13]))
    lengths = [f"INTERVAL '{slide}' MILLISECOND"] if slide != size else []
    name, lengths = "HOP" if lengths else "TUMBLE", [*lengths, f"INTERVAL '{size}' MILLISECOND"]
    flink = not times and random.random() < 0.3
    arguments = [f"TABLE {source}", f"DESCRIPTOR({time})"] if flink else [source, time]
    call = f"{name}({', '.join([*arguments, *lengths])})"
    columns = {f"w.{column}": kind for column, kind in columns.items()}
    kinds = [kind for kind in ("int", "text") if _of_kind(columns, kind)]
    drawn = [_pick(random, kinds) for _ in range(int(random.integers(0, 3)))]
    keys = {_value(random, columns, kind): kind for kind in drawn}
    items = {f"g{i}": key for i, key in enumerate(keys)}
    out = {alias: keys[key] for alias, key in items.items()}
    number = _value(random, columns, "int")
    calls = ["count(*)", f"sum({number})", f"min({number})", f"max({number})", f"count({number})"]
    calls += [f"count(*) FILTER (WHERE {_condition(random, columns)})", f"coalesce(sum({number}) % 7, 0) + 1"]
    for i in range(int(random.integers(1, 4))):
        items[f"n{i}"], out[f"n{i}"] = _pick(random, calls), "int"
    grouped = [*keys, "window_start", "window_end"]
    text = f"SELECT {', '.join(f'{item} AS {alias}' for alias, item in items.items())}, window_start AS t0, window_end AS t1"
    text += f" FROM {'TABLE(' + call + ')' if flink else call} w"
    text += f" WHERE {_condition(random, columns)}" if random.random() < 0.3 else ""
    text += f" GROUP BY {', '.join(grouped)}"
    text += f" HAVING count(*) > {random.integers(3)}" if random.random() < 0.3 else ""
    return text, out | {"t0": "time", "t1": "time"}, ["t0", "t1"]


def _within(random: np.random.Generator, left: str, right: str) -> list[str]:
    """Conditions that bound right - left."""
    low, high = sorted(random.integers(-40, 40, 2).tolist())
    high = max(high, low + 1)  # bounds that exclude each other are refused
    before, after = f"INTERVAL '{low}' MILLISECOND", f"INTERVAL '{high}' MILLISECOND"
    forms = [
        [f"{right} BETWEEN {left} + {before} AND {left} + {after}"],
        [f"{right} - {left} BETWEEN {before} AND {after}"],
        [f"{right} > {left} + {before}", f"{left} >= {right} - {after}"],
        [f"{left} BETWEEN {right} - {after} AND {right} - {before}"],
        [f"{left} = {right}"]
        if random.random() < 0.1
        else [f"{right} >= {left}", f"{right} < {left} + INTERVAL '25' MILLISECOND"],
    ]
    return forms[int(random.integers(len(forms)))]


def _band(random: np.random.Generator, left: str, right: str) -> list[str]:
    """Conditions that bound the difference of two numbers."""
    low, high = sorted(random.integers(-5, 6, 2).tolist())
    forms = [
        [f"abs({left} - {right}) <= {high - low}"],
        [f"{high - low + 1} > abs({right} - {left} + {low})"],
        [f"{right} BETWEEN {left} + {low} AND {left} + {high}"],
        [f"{left} - {right} >= {low}", f"{left} <= {right} + {high}"],
        [f"{left} * 0.5 - {right} BETWEEN {low} AND {high}.25"],
    ]
    return forms[int(random.integers(len(forms)))]


def _joined(random: np.random.Generator, left: _From, right: _From, how: str) -> _From:
    both = left.columns | right.columns
    time = _pick(random, list(left.times)), _pick(random, list(right.times))
    texts = [_of_kind(side.columns, "text") for side in (left, right)]
    kind = "text" if random.random() < 0.2 and all(texts) else "int"
    one, two = _of_kind(left.columns, kind), _of_kind(right.columns, kind)
    keys = [c for c in one if c.split(".")[1] in ("k", "x")] or one, [c for c in two if c.split(".")[1] in ("k", "x")] or two
    conditions = [f"{_pick(random, keys[0])} = {_pick(random, keys[1])}", *_within(random, *time)]
    # semi and anti joins by several inequalities lose rows in DuckDB 2.0
    if random.random() < 0.25 and how in ("JOIN", "LEFT JOIN", "RIGHT JOIN") and kind == "int":
        conditions[:1] = _band(random, _pick(random, one), _pick(random, two))
    if random.random() < 0.3:
        conditions.append(f"{_pick(random, _of_kind(left.columns, 'int'))} <> {_pick(random, _of_kind(right.columns, 'int'))}")
    if random.random() < 0.2 and how in ("JOIN", "LEFT JOIN"):
        conditions.append(_condition(random, right.columns))
    order = [conditions[i] for i in random.permutation(len(conditions))]
    times = {"JOIN": time, "LEFT JOIN": time[:1], "RIGHT JOIN": time[1:], "SEMI JOIN": time[:1], "ANTI JOIN": time[:1]}
    columns = left.columns if how in ("SEMI JOIN", "ANTI JOIN") else both
    return _From(f"{left.text} {how} {right.text} ON {' AND '.join(order)}", columns, tuple(times.get(how, ())))


def _looked_up(random: np.random.Generator, found: _From, alias: str) -> _From:
    """A join with a static table."""
    columns = {f"{alias}.{name}": kind for name, kind in _KINDS.items()}
    text = f"d {alias}" if random.random() < 0.5 else f"(SELECT * FROM d WHERE {_condition(random, _KINDS)}) {alias}"
    kind = "text" if random.random() < 0.3 and _of_kind(found.columns, "text") else "int"
    conditions = [f"{_pick(random, _of_kind(found.columns, kind))} = {alias}.{'x' if kind == 'text' else 'k'}"]
    if kind == "text" or random.random() < 0.3:
        conditions.append(f"{_pick(random, _of_kind(found.columns, 'int'))} % 5 = {alias}.v % 5")
    if random.random() < 0.4:
        conditions.append(_condition(random, found.columns | columns))
    how = _pick(random, ["JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN"])
    both = found.columns if how in ("SEMI JOIN", "ANTI JOIN") else found.columns | columns
    return _From(f"{found.text} {how} {text} ON {' AND '.join(conditions)}", both, found.times)


def _select(random: np.random.Generator, depth: int, prefix: str) -> tuple[str, dict[str, str], list[str]]:
    """A SELECT, the columns that it gives, and those of them that are times."""
    found = _table(random, f"{prefix}0", depth)
    if random.random() < 0.15:
        found = _looked_up(random, found, f"{prefix}d")
    for i in range(int(random.choice([0, 1, 1, 2])) if depth else 0):
        if not found.times:
            break
        how = str(random.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]))
        found = _joined(random, found, _table(random, f"{prefix}{i + 1}", depth - 1), how)
    if found.times and random.random() < 0.15:
        found = _looked_up(random, found, f"{prefix}s")
    items, columns, times = [], {}, []
    for i, kind in enumerate(["int", *random.choice(["int", "text"], int(random.integers(1, 4))).tolist()]):
        if _of_kind(found.columns, kind):
            name = f"{'n' if kind == 'int' else 's'}{i}"
            items.append(f"{_value(random, found.columns, kind)} AS {name}")
            columns[name] = kind
    for i, name in enumerate(found.times or _of_kind(found.columns, "time")[:1]):
        items.append(f"{name} AS t{i}")
        columns[f"t{i}"] = "time"
        times += [f"t{i}"] if name in found.times else []
    where = [_condition(random, found.columns) for _ in range(int(random.choice([0, 0, 1, 2])))]
    text = f"SELECT {', '.join(items)} FROM {found.text}" + (f" WHERE {' AND '.join(where)}" if where else "")
    return text, columns, times if found.times else []


def random_query(random: np.random.Generator) -> str:
    while True:
        if random.random() < 0.25:
            return _grouped(random, "q", 2)[0]
        text, columns, times = _select(random, 2, "q")
        choice = random.random()
        if choice < 0.2:
            again = f"SELECT {', '.join(columns)} FROM u WHERE {_condition(random, columns)}"
            return f"WITH u AS ({text}) SELECT * FROM u UNION ALL {again}"
        if choice < 0.35 and times:
            right = _table(random, "r", 0)
            left = _From("u", {f"u.{name}": kind for name, kind in columns.items()}, tuple(f"u.{name}" for name in times))
            joined = _joined(random, left, right, "JOIN")
            return f"WITH u AS ({text} UNION ALL {text}) SELECT u.*, r.v AS rv FROM {joined.text}"
        return text


def random_inputs(folder: Path) -> dict[str, StreamConfig]:
    found = write_streams(folder, "abc", 300, 1, keys=12, null_share=0.05)
    table = write_streams(folder, "d", 30, 2, keys=14, null_share=0.1)
    return found | {name: replace(config, time="") for name, config in table.items()}


def main(count: int, first: int = 0) -> int:
    from tests.support.plan_runs import duckdb_rows
    from tests.support.queries import run_query

    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        inputs = random_inputs(Path(folder))
        for seed in range(first, first + count):
            text = random_query(np.random.default_rng([seed, 40]))
            try:
                found, _ = run_query(text, inputs, Path(folder) / f"run {seed}")
                wanted = duckdb_rows(inputs, text)
                said = "" if found == wanted else f"{sum(found.values())} rows, DuckDB has {sum(wanted.values())}"
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            if said:
                failures += 1
                print(f"seed {seed}: {said}\n  {text}", flush=True)
    print(f"{count} queries, {failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
