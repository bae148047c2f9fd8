"""RDF streams: reading triples, a window that slides, and a star of three patterns, beside pyoxigraph and DuckDB; many queries.

Usage: python -m benchmarks.rdf [parse] [slide] [star] [patterns] [queries] [runs] [rspjs] [--repeat 3] [--tiny]
parse: N-Triples from a file to codes, one thread, beside `pyoxigraph.parse`; lines as of LSBench's posts, half of the terms
new.
slide: `swjoin rdf` from Parquet to a count of rows, posts of 10,000 triples/s for three minutes, RANGE 60 s SLIDE 1 s, a join
with tags and COUNT by user; beside DuckDB, which computes each window anew from codes, and pyoxigraph, a store per window, for
some of the boundaries. star: three streams that share a variable, RANGE 10 s, fan-out 0.5 a probe, from Parquet to a count;
beside DuckDB, which has the whole input at hand.
patterns: matching alone, from codes to mappings, one thread: 10,000 and 100,000 queries that differ in a constant, posts of
LSBench-like streams. queries: the queries of CQELS Cloud's evaluation over such streams, from Parquet to rows in memory, one
thread: Q1 with constants varied, Q4, Q5 and Q10 with windows varied; triples/s over those of one query, the widest.
runs: the same queries as those of a run, whose terms are text, from Parquet to a count, one slave; beside `swjoin rdf`.
Turn by turn, the first turn not counted; answers are compared in the first one.
rspjs, only by name: slide at a tenth of the rate, for a minute, beside some windows of RSP.js, which runs once, in an
environment of its own.
"""

from __future__ import annotations

import io
import json
import statistics
import subprocess
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
from benchmarks import ROOT, parse_parts
from benchmarks.peers.run import environment
from swjoin.connectors.generator import lsbench
from swjoin.core.errors import ImplausibleWarning
from swjoin.frontends.configured import job_of_query
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.families import Family, Parameters, parse_queries
from swjoin.frontends.rdf.inputs import Graphs, matched, read_graphs
from swjoin.frontends.rdf.triples import MalformedTriples, read_triples
from swjoin.runtime.in_process import run_local

E = "http://example.org/"
PARTS = ("parse", "slide", "star", "patterns", "queries", "runs")
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


_SLIDING = """SELECT ?u (COUNT(?t) AS ?n) {{
    STREAM e:posts [RANGE {}s SLIDE 1s] {{ ?u e:wrote ?p . ?p e:tag ?t }} }} GROUP BY ?u"""
_RSP_QL = f"""PREFIX e: <{E}>
REGISTER RStream <output> AS
SELECT ?u (COUNT(?t) AS ?n)
FROM NAMED WINDOW e:w ON STREAM e:posts [RANGE {{}} STEP 1000000]
WHERE {{{{
WINDOW e:w {{{{ ?u e:wrote ?p . ?p e:tag ?t }}}}
}}}} GROUP BY ?u
"""  # a clause for each line, as its parser wants


def of_sliding(repeat: int, *, tiny: bool) -> None:
    seconds, rate, width = (20, 200, 6) if tiny else (180, 10_000, 60)
    stream, peers = posts(seconds, rate), range(1, seconds + width, 5 if tiny else 40)
    query = _SLIDING.format(width)
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


def of_rsp_js(repeat: int, *, tiny: bool) -> None:
    seconds, rate, width = (9, 200, 6) if tiny else (64, 1_000, 60)
    stream, boundaries = posts(seconds, rate), range(width, seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(stream, folder / "posts.parquet")
        took = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            answered(_SLIDING.format(width), {f"{E}posts": folder / "posts.parquet"}, folder)
            took.append((time.perf_counter() - start) / seconds)  # each triple is in `width` windows, as in so many full ones
        born = pq.read_table(folder / "answer.parquet", columns=["born"])["born"].to_numpy()
        rows = zip(*(stream[column].to_pylist() for column in ("ts", "s", "p", "o")), strict=True)
        lines = ("\t".join([str(ts), *(term[1:-1] for term in terms)]) for ts, *terms in rows)
        (folder / "posts.tsv").write_text("\n".join(lines) + "\n")
        (folder / "query.rspql").write_text(_RSP_QL.format(width * _SECOND_US))
        command = [str(environment("rspjs", ROOT / "runs" / "peers")), "-m", "benchmarks.peers.rsp_js"]
        command += [str(folder / "posts.tsv"), str(folder / "query.rspql"), "--width-s", str(width)]
        command += ["--boundaries", *map(str, boundaries)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1500, cwd=ROOT)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    theirs = [each["added_s"] + each["query_s"] for each in found]
    wanted = [int((born == at * _SECOND_US).sum()) for at in boundaries]
    if [each["rows"] for each in found] != wanted or [each["boundary_s"] for each in found] != list(boundaries):
        raise SystemExit(f"rows of boundaries {boundaries} are {wanted}; RSP.js: {found}")
    mine, median = statistics.median(took[1:]), statistics.median(theirs)
    print(
        f"rspjs, {rate:,} triples/s, {width} s by 1 s, {wanted[0]:,} rows: a full window takes {mine * 1e3:.2f} ms, RSP.js "
        f"{median * 1e3:,.0f} ms ({min(theirs) * 1e3:,.0f} to {max(theirs) * 1e3:,.0f}): {median / mine:,.0f} x; "
        "as many rows in each",
        flush=True,
    )


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


# ---------------------------------------------------------------- many queries

STANDALONE = {10: 1_000, 100: 100}  # triples/s of the engine on one machine that the paper quotes, by number of queries
_BLOCKS = {  # the widest windows in seconds, and what is asked
    "Q4": (
        (15,),
        "SELECT ?u ?p1 ?p2 {{ STREAM l:poststream [RANGE {0}us] {{ ?p1 sib:hashtag ?tag . ?u sioc:creator_of ?p1 . "
        "?p2 sib:hashtag ?tag . ?u sioc:creator_of ?p2 }} FILTER(?p1 != ?p2) }}",
    ),
    "Q5": (
        (0.1, 60),
        "SELECT ?f1 ?f2 ?ph {{ STREAM l:likedphotostream [RANGE {0}us] {{ ?f2 sib:like ?ph }} "
        "STREAM l:photostream [RANGE {1}us] {{ ?ph sib:usertag ?f1 }} ?f1 foaf:knows ?f2 }}",
    ),
    "Q10": (
        (60, 60),
        "SELECT ?a (COUNT(?b) AS ?n) {{ STREAM l:poststream [RANGE {0}us] {{ ?a sioc:creator_of ?p }} "
        "STREAM l:likedpoststream [RANGE {1}us] {{ ?b sib:like ?p }} ?b foaf:knows ?a }} GROUP BY ?a",
    ),
}
_TEXT = lsbench.PREFIXES + "PREFIX l: <http://lsbench.org/>\n"


def texts(name: str, count: int, users: int) -> dict[str, str]:
    """So many variants of a query; the last one has the widest windows."""
    if name == "Q1":
        block = "STREAM l:poststream [RANGE 1s]"
        return {f"q{i}": f"{_TEXT}SELECT ?p ?o {{ {block} {{ user:{i} ?p ?o }} }}" for i in range(min(count, users))}
    widths, text = _BLOCKS[name]
    shares = range(1, count + 1)
    return {f"q{i}": _TEXT + text.format(*(round(w * _SECOND_US * i / count) for w in widths)) for i in shares}


def network(folder: Path, events: int, users: int) -> tuple[dict[str, Path], dict[str, Path]]:
    """Streams and graph, by IRI."""
    names = (*lsbench.STREAMS, lsbench.GRAPH)
    files = {name: folder / f"{name}.parquet" for name in names}
    lsbench.write_streams(files, events, users)
    iris = {f"http://lsbench.org/{name}": path for name, path in files.items()}
    return iris, {"http://lsbench.org/knows": iris.pop("http://lsbench.org/knows")}


def of_patterns(repeat: int, *, tiny: bool) -> None:
    events, users = (4_000, 200) if tiny else (2_000_000, 200_000)
    with tempfile.TemporaryDirectory() as name:
        streams, _ = network(Path(name), events, users)
        iri = "http://lsbench.org/poststream"
        runs: dict[str, Callable[[], int]] = {}
        triples, took = 0, dict[str, list[float]]()
        for count in (users // 20, users // 2):
            (family,) = parse_queries(texts("Q1", count, users), {})
            graphs = read_graphs([family.query], {iri: str(streams[iri])}, {}, "error")
            parameters = Parameters(family.codes(graphs.dictionary))
            triples = graphs.counts[iri]
            subject = graphs.streams[iri].terms[0]
            wanted = int(np.isin(subject, parameters.codes[family.variables[0]]).sum())

            def match(family: Family = family, graphs: Graphs = graphs, parameters: Parameters = parameters) -> int:
                graphs.found.clear()
                return matched(family.query, graphs, parameters)[0].count

            if match() != wanted:
                raise SystemExit(f"{match()} mappings, {wanted} triples have a subject that is asked for")
            runs[f"{count:,} patterns"] = match
        for turn in range(repeat + 1):
            for what, run in runs.items():
                start = time.perf_counter()
                run()
                if turn:
                    took.setdefault(what, []).append(time.perf_counter() - start)
        for what, seconds in took.items():
            low, high = triples / max(seconds) / 1e6, triples / min(seconds) / 1e6
            print(f"patterns, {what}: {triples / statistics.median(seconds) / 1e6:.1f} M triples/s ({low:.1f} to {high:.1f})")
        few, many = took.values()
        ratios = [a / b for a, b in zip(few, many, strict=True)]
        print(f"patterns: many over few {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def of_queries(repeat: int, *, tiny: bool) -> None:
    events, users = (4_000, 200) if tiny else (1_000_000, 10_000)
    with tempfile.TemporaryDirectory() as name:
        streams, graph = network(Path(name), events, users)
        for query, counts in {"Q1": (1, 100, 10_000), "Q4": (1, 10, 100), "Q5": (1, 10, 100), "Q10": (1, 10, 100)}.items():
            _vary(query, counts if not tiny else counts[:2], users, (streams, graph), repeat)


def _vary(
    query: str, counts: tuple[int, ...], users: int, inputs: tuple[Mapping[str, Path], Mapping[str, Path]], repeat: int
) -> None:
    streams, graph = inputs
    read = {
        iri: path
        for iri, path in streams.items()
        if f":{iri.rpartition('/')[2]} " in next(iter(texts(query, 1, users).values()))
    }
    static = graph if "foaf:knows" in _BLOCKS.get(query, ((), ""))[1] else {}
    triples = sum(pq.read_metadata(path).num_rows for path in read.values())

    def run(count: int) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImplausibleWarning)
            found: dict[str, Any] = swjoin.rdf(texts(query, count, users), read, static=static, threads=1)
        return found

    alone = swjoin.proof(run(1)["q0" if query == "Q1" else "q1"])
    took: dict[int, list[float]] = {}
    for turn in range(repeat + 1):
        for count in counts:
            start = time.perf_counter()
            found = run(count)
            if turn:
                took.setdefault(count, []).append(time.perf_counter() - start)
            same = swjoin.proof(found["q0" if query == "Q1" else f"q{count}"])
            if (same.count, same.digest) != (alone.count, alone.digest):
                raise SystemExit(f"{query}, {count} queries: {same.count} rows, alone {alone.count}")
    for count, seconds in took.items():
        rates = [triples / s for s in seconds]
        over = statistics.median(one / s for one, s in zip(took[counts[0]], seconds, strict=True))
        low, median, high = (f(rates) / 1e3 for f in (min, statistics.median, max))
        said = f"queries, {query}, {count:,}: {median:,.0f} k triples/s ({low:,.0f} to {high:,.0f}), {over:.2f} of one query"
        quoted = STANDALONE.get(count) if query in ("Q4", "Q10") else None
        times = "" if quoted is None else f", {1e3 * median / quoted:,.0f} x the engine that the paper quotes"
        print(f"{said}{times}; {alone.count:,} rows of the widest", flush=True)


# ---------------------------------------------------------------- queries of runs


def of_runs(repeat: int, *, tiny: bool) -> None:
    events, users = (4_000, 200) if tiny else (1_000_000, 10_000)
    with tempfile.TemporaryDirectory() as name:
        streams, graph = network(Path(name), events, users)
        for query, count in (("Q1", 1), ("Q1", 100), ("Q4", 1), ("Q4", 10), ("Q5", 1), ("Q10", 1), ("Q10", 10)):
            _beside_files(f"{query}, {count}", texts(query, count, users), (streams, graph), repeat)


def _beside_files(
    title: str, asked: Mapping[str, str], inputs: tuple[Mapping[str, Path], Mapping[str, Path]], repeat: int
) -> None:
    streams, graph = inputs
    one = next(iter(asked.values()))
    read = {iri: path for iri, path in streams.items() if f":{iri.rpartition('/')[2]} " in one}
    static = graph if "foaf:knows" in one else {}
    triples = sum(pq.read_metadata(path).num_rows for path in read.values())
    names = {iri.rpartition("/")[2]: {"path": str(path), "iri": iri} for iri, path in {**read, **static}.items()}
    times = {iri.rpartition("/")[2]: {"time": "ts", "time_unit": "us"} for iri in read}
    plain = {
        "queries": [{"name": name, "sparql": text} for name, text in asked.items()],
        "inputs": {name: given | times.get(name, {}) for name, given in names.items()},
        "sink": {"kind": "count"},
    }

    def of_run() -> Any:
        report = run_local(job_of_query(plain, "runs", "bench"), False, 1)
        return tuple((query["count"], query["digest"]) for query in report["queries"])

    def of_files() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImplausibleWarning)
            found: dict[str, Any] = swjoin.rdf(dict(asked), read, static=static, threads=1)
        proofs = [swjoin.proof(found[name]) for name in asked]
        return tuple((proof.count, proof.digest) for proof in proofs)

    shown(f"runs, {title}", turns({"run": of_run, "swjoin rdf": of_files}, repeat), triples)


def main() -> None:
    args = parse_parts(__doc__, PARTS, by_name=("rspjs",))
    functions = (of_parsing, of_sliding, of_star, of_patterns, of_queries, of_runs, of_rsp_js)
    parts = dict(zip((*PARTS, "rspjs"), functions, strict=True))
    for name in args.parts:
        parts[name](args.repeat, tiny=args.tiny)


if __name__ == "__main__":
    main()
