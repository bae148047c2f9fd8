"""RDF streams: reading triples, a window that slides, and a star of three patterns, beside pyoxigraph and DuckDB.

Usage: python -m benchmarks.rdf [parse] [slide] [star] [--repeat 3] [--tiny]
parse: N-Triples from a file to codes, one thread, beside `pyoxigraph.parse`; lines as of LSBench's posts, half of the terms
new.
slide: `swjoin rdf` from Parquet to a count of rows, posts of 10,000 triples/s for three minutes, RANGE 60 s SLIDE 1 s, a join
with tags and COUNT by user; beside DuckDB, which computes each window anew from codes, and pyoxigraph, a store per window, for
some of the boundaries. star: three streams that share a variable, RANGE 10 s, fan-out 0.5 a probe, from Parquet to a count;
beside DuckDB, which has the whole input at hand.
Turn by turn, the first turn not counted; answers are compared in the first one.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import swjoin
from benchmarks import parse
from swjoin.core.errors import ImplausibleWarning
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.triples import MalformedTriples, read_triples

E = "http://example.org/"
PARTS = ("parse", "slide", "star")
_SECOND_US = 1_000_000


def turns(runs: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, list[float]]:
    """Seconds of each, turn by turn. SystemExit when answers differ."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeat + 1):
        answers = {}
        for name, run in runs.items():
            start = time.perf_counter()
            answers[name] = run()
            if turn:
                took[name].append(time.perf_counter() - start)
        if turn == 0 and len(set(answers.values())) != 1:
            raise SystemExit(f"different answers: {answers}")
    return took


def shown(title: str, took: Mapping[str, list[float]], rows: int) -> None:
    """Rates, and how many times as fast as the others ours is."""
    ours, *others = took
    for name, seconds in took.items():
        low, high = rows / max(seconds) / 1e6, rows / min(seconds) / 1e6
        print(f"{title}, {name}: {rows / statistics.median(seconds) / 1e6:.3f} M/s ({low:.3f} to {high:.3f})", flush=True)
    for name in others:
        ratios = [theirs / mine for mine, theirs in zip(took[ours], took[name], strict=True)]
        print(f"{title}: {statistics.median(ratios):.2f} x {name} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


# ---------------------------------------------------------------- parse


def lines(count: int) -> bytes:
    """N-Triples: posts by users, with tags and texts."""
    rng, out = np.random.default_rng(1), io.BytesIO()
    users, tags = rng.integers(0, 50_000, count), rng.integers(0, 5_000, count)
    for i in range(0, count, 3):
        post = f"<{E}posts/{i}>"
        out.write(f"<{E}users/{users[i]}> <{E}wrote> {post} .\n{post} <{E}hashtag> <{E}tags/{tags[i]}> .\n".encode())
        out.write(f'{post} <{E}content> "A text of some words, number {i}"@en .\n'.encode())
    return out.getvalue()


def of_parsing(repeat: int, *, tiny: bool) -> None:
    import pyoxigraph

    count = 3_000 if tiny else 900_000
    data = lines(count)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posts.nt"
        path.write_bytes(data)

        def ours() -> int:
            found = read_triples(str(path), TermDictionary(), times=False, malformed=MalformedTriples("error"))
            return sum(map(len, found))

        def oxigraph() -> int:
            return sum(1 for _ in pyoxigraph.parse(path=str(path), format=pyoxigraph.RdfFormat.N_TRIPLES))

        shown(f"parse, {len(data) / count:.0f} bytes a line", turns({"swjoin": ours, "pyoxigraph": oxigraph}, repeat), count)


# ---------------------------------------------------------------- streams


def posts(seconds: int, rate: int) -> pa.Table:
    """Posts, and a tag of each at the same time: so many triples a second."""
    count = seconds * rate // 2
    rng = np.random.default_rng(2)
    ts = np.arange(count) * (2 * _SECOND_US // rate)
    users, tags = rng.integers(0, 2_000, count), rng.integers(0, 500, count)
    post = [f"<{E}p{i}>" for i in range(count)]
    who = pa.table({"ts": ts, "s": [f"<{E}u{u}>" for u in users], "p": [f"<{E}wrote>"] * count, "o": post})
    what = pa.table({"ts": ts, "s": post, "p": [f"<{E}tag>"] * count, "o": [f"<{E}t{t}>" for t in tags]})
    return pa.concat_tables([who, what]).sort_by("ts")


def answered(query: str, streams: dict[str, Any], folder: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImplausibleWarning)
        found: int = swjoin.rdf(f"PREFIX e: <{E}> {query}", streams, out=folder / "answer.parquet").count
    return found


def of_sliding(repeat: int, *, tiny: bool) -> None:
    seconds, rate, width = (20, 200, 6) if tiny else (180, 10_000, 60)
    stream, peers = posts(seconds, rate), range(1, seconds + width, 5 if tiny else 40)
    query = f"""SELECT ?u (COUNT(?t) AS ?n) {{
        STREAM e:posts [RANGE {width}s SLIDE 1s] {{ ?u e:wrote ?p . ?p e:tag ?t }} }} GROUP BY ?u"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(stream, folder / "posts.parquet")
        boundaries = range(0, (seconds + width) * _SECOND_US, _SECOND_US)

        def ours() -> int:
            return answered(query, {f"{E}posts": folder / "posts.parquet"}, folder)

        def ducks() -> int:
            """Each window anew, from codes in memory."""
            rows = 0
            with duckdb.connect() as db:
                db.execute("SET threads = 2")
                source, terms = f"'{folder}/posts.parquet'", "SELECT DISTINCT unnest([s, p, o]) AS t"
                db.sql(f"CREATE TABLE terms AS SELECT t, row_number() OVER () AS code FROM ({terms} FROM {source})")
                joins = "JOIN terms a ON x.s = a.t JOIN terms b ON x.o = b.t"
                db.sql(f"CREATE TABLE w AS SELECT ts, a.code AS s, p, b.code AS o FROM {source} x {joins} ORDER BY ts")
                for at in boundaries:
                    inside = f"ts > {at - width * _SECOND_US} AND ts <= {at}"
                    found = db.execute(
                        f"SELECT count(*) FROM (SELECT a.s, count(*) FROM w a JOIN w b ON a.o = b.s AND b.p = '<{E}tag>' "
                        f"WHERE a.{inside.replace('AND ', 'AND a.')} AND b.{inside.replace('AND ', 'AND b.')} "
                        f"AND a.p = '<{E}wrote>' GROUP BY a.s)"
                    ).fetchone()
                    rows += found[0] if found else 0
            return rows

        took = turns({"swjoin": ours, "DuckDB per slide": ducks}, repeat)
        shown(f"slide, {rate:,} triples/s, {width} s by 1 s", took, stream.num_rows)
        born = pq.read_table(folder / "answer.parquet", columns=["born"])["born"].to_numpy()
        slowest = _oxigraph_seconds(stream, width, {at: int((born == at * _SECOND_US).sum()) for at in peers})
        each = statistics.median(took["swjoin"]) / len(boundaries)
        print(
            f"slide: a boundary takes {each * 1e3:.2f} ms, pyoxigraph {slowest * 1e3:.0f} ms: {slowest / each:.0f} x",
            flush=True,
        )


def _oxigraph_seconds(stream: pa.Table, width: int, wanted: Mapping[int, int]) -> float:
    """Median time of a window: its triples into a store, and the query. wanted: rows, by boundary in seconds. SystemExit for
    others."""
    import pyoxigraph

    names = {text: pyoxigraph.NamedNode(text[1:-1]) for column in "spo" for text in stream[column].unique().to_pylist()}
    ts, rows = stream["ts"].to_numpy(), list(zip(*(stream[c].to_pylist() for c in "spo"), strict=True))
    query = f"PREFIX e: <{E}> SELECT ?u (COUNT(?t) AS ?n) {{ ?u e:wrote ?p . ?p e:tag ?t }} GROUP BY ?u"
    took: list[float] = []
    for at, rows_there in wanted.items():
        first, last = np.searchsorted(ts, [(at - width) * _SECOND_US, at * _SECOND_US], "right")
        start = time.perf_counter()
        store = pyoxigraph.Store()
        store.extend(pyoxigraph.Quad(names[s], names[p], names[o]) for s, p, o in rows[first:last])
        solutions: Any = store.query(query)
        found = len(list(solutions))
        took.append(time.perf_counter() - start)
        if found != rows_there:
            raise SystemExit(f"pyoxigraph has {found} rows at {at} s, swjoin {rows_there}")
    return statistics.median(took)


def of_star(repeat: int, *, tiny: bool) -> None:
    count, width = (2_000, 10) if tiny else (400_000, 10)
    rng, names = np.random.default_rng(3), ("likes", "shares", "views")
    near = 1_000 if not tiny else 100  # subjects that are met in a window: half of the probes find one
    patterns = " ".join(f"STREAM e:{n} [RANGE {width}s] {{ ?p e:{n} ?{n} }}" for n in names)
    with tempfile.TemporaryDirectory() as name:
        folder, span = Path(name), count * _SECOND_US * width // (near // 2)
        for stream in names:
            ts = np.sort(rng.integers(0, span, count))
            keys = ts // (width * _SECOND_US) * near + rng.integers(0, near, count)
            who = rng.integers(0, 1_000, count)
            terms = {"s": [f"<{E}p{k}>" for k in keys], "p": [f"<{E}{stream}>"] * count, "o": [f"<{E}u{u}>" for u in who]}
            pq.write_table(pa.table({"ts": ts, **terms}), folder / f"{stream}.parquet")

        def ours() -> int:
            return answered(f"SELECT * {{ {patterns} }}", {f"{E}{n}": folder / f"{n}.parquet" for n in names}, folder)

        def ducks() -> int:
            near_each_other = " AND ".join(
                f"abs({a}.ts - {b}.ts) <= {width * _SECOND_US}" for a, b in (("a", "b"), ("a", "c"), ("b", "c"))
            )
            files = [f"'{folder}/{n}.parquet'" for n in names]
            with duckdb.connect() as db:
                db.execute("SET threads = 2")
                text = (
                    f"FROM {files[0]} a JOIN {files[1]} b ON a.s = b.s JOIN {files[2]} c ON a.s = c.s WHERE {near_each_other}"
                )
                db.sql(f"COPY (SELECT a.s, a.o, b.o, c.o, greatest(a.ts, b.ts, c.ts) AS born {text}) TO '{folder}/d.parquet'")
            return int(pq.read_metadata(folder / "d.parquet").num_rows)

        shown("star of three", turns({"swjoin": ours, "DuckDB": ducks}, repeat), 3 * count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--repeat", type=int, default=3)
    args = parse(parser)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)}; parts are {', '.join(PARTS)}")
    parts = {"parse": of_parsing, "slide": of_sliding, "star": of_star}
    for name in args.parts or PARTS:
        parts[name](args.repeat, tiny=args.tiny)


if __name__ == "__main__":
    main()
