"""The job of a configuration: the join of two streams, or a query in SQL over inputs.

What: `job_of` and `job_to_run(path, overrides, command)`, without outputs; `job_of_query` and `has_query`, of a mapping.
Why: `run`, `explain`, `plan`, `simulate` and sweeps take the same files. `queries: [{name: ..., sql: ..., functions: ...}]`, or
`sparql`, and `inputs` stand in place of `join`, `left` and `right`; all other sections are those of any run.
Stays out: the other keys (`config.loader`), SQL (`frontends.sql`), options of `swjoin query` (`cli.query`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job, load_job
from swjoin.config.loader import apply_overrides, load_config, load_plain, read_config, shown, stream_from_plain
from swjoin.config.option_keys import JOIN_KEYS, OPTION_KEYS
from swjoin.config.run import to_plain
from swjoin.connectors.schema import parse_schema
from swjoin.core.errors import UserError
from swjoin.plan.sharing import check_query_name

if TYPE_CHECKING:
    from swjoin.frontends.sql.functions import Function
    from swjoin.frontends.sql.planner import QueryText, Table
    from swjoin.plan.logical import LogicalPlan

_OF_TWO_STREAMS = (
    *("join", "left", "right", *JOIN_KEYS),
    *(name for name, paths in OPTION_KEYS.items() if paths[0].startswith(("left.", "right."))),
)
_FUNCTION = "{call: package.module:function, schema: 'user: string, score: double'}"
_LANGUAGES = {"sql", "sparql"}
_OF_RUNS = ("results", "late", "metrics")
_OF_JOINS = {"key": "joins of a query name their keys", "on": "joins of a query name their keys"}
_OF_JOINS |= dict.fromkeys(("columns", "id"), "a query names what it reads")


def job_of(path: Path, overrides: Sequence[str], command: str) -> Job:
    """Of a configuration, or of an earlier run: its directory, or its run.json. UserError names the file and the key of what is
    wrong."""
    earlier = path.suffix == ".json" or os.path.isdir(path)
    return load_job(path, overrides, command) if earlier else job_to_run(path, overrides, command)


def job_to_run(path: Path, overrides: Sequence[str], command: str, *, served: bool = False) -> Job:
    """Of a configuration. served: with an endpoint. UserError names the file and the key of what is wrong."""
    plain = load_plain(path)
    if not has_query(plain):
        return Job(load_config(path, list(overrides), served=served), None, False, None, None, command)
    try:
        return job_of_query(apply_overrides(plain, list(overrides)), str(path), command, served=served)
    except UserError as error:
        raise (error if error.text("keys").startswith(str(path)) else error.prefixed(str(path))) from None


def has_query(plain: Mapping[str, Any]) -> bool:
    """Whether a configuration has a query in SQL, or its inputs, in the place of a join."""
    queries = plain.get("queries")
    texts = isinstance(queries, list) and any(isinstance(query, dict) and query.keys() & _LANGUAGES for query in queries)
    return plain.get("inputs", []) != [] or texts  # a join that was written as plain values has none


def job_of_query(plain: Mapping[str, Any], where: str, command: str, *, served: bool = False) -> Job:
    """Of a configuration with a query. where: it begins errors of other keys. UserError names the key of what is wrong."""
    from swjoin.frontends.sql.planner import plan_queries
    from swjoin.frontends.sql.tables import described
    from swjoin.plan.plain import plan_to_plain

    queries, inputs = _queries_of(plain.get("queries")), _inputs_of(plain.get("inputs"))
    for key in _OF_TWO_STREAMS:
        if plain.get(key) is not None:
            raise UserError(f"{key}: is for the join of two streams; leave it out beside queries")
    tables = {}
    for name, stream in inputs.items():
        try:
            tables[name] = described(stream, f"write inputs.{name}.time_unit: ms, or s, us, ns")
        except UserError as error:
            raise error.prefixed(f"inputs.{name}") from None
    rest = {key: value for key, value in plain.items() if key != "queries"}
    if plain.get("workload") is not None and not any(stream.generate for stream in inputs.values()):
        raise UserError("workload: no input is generated; leave it out, or write inputs: {NAME: {generate: calls}}")
    rest |= {"inputs": [to_plain(stream) for stream in inputs.values()], "join": {"lower_us": 0, "upper_us": 0}}
    config = read_config(rest, [], where, served=served)
    planned = _planned(queries, inputs, tables)
    query = plan_queries(planned, tables, config.cluster.routing)
    streams = dict(zip(inputs, config.inputs, strict=True))
    config = replace(config, inputs=tuple(streams[name] for name in query.tables))
    return Job(config, None, False, None, None, command, plan=plan_to_plain(query.plan))


class _Sparql(NamedTuple):
    """A query over RDF streams. where: it begins errors."""

    text: str
    where: str


def _planned(
    queries: Mapping[str, QueryText | _Sparql], inputs: Mapping[str, StreamConfig], tables: Mapping[str, Table]
) -> dict[str, QueryText | LogicalPlan]:
    """The queries, with plans of those over RDF streams, and of malformed triples that are kept."""
    kept = {name: _query_of_malformed(name, stream, queries) for name, stream in inputs.items() if stream.malformed == "side"}
    if not kept and not any(isinstance(query, _Sparql) for query in queries.values()):
        return {name: query for name, query in queries.items() if not isinstance(query, _Sparql)}
    from swjoin.frontends.rdf.live_planner import LivePlans, streams_of

    rdf = {name: query for name, query in queries.items() if isinstance(query, _Sparql)}
    texts, where = {name: query.text for name, query in rdf.items()}, {name: query.where for name, query in rdf.items()}
    live = LivePlans(streams_of(inputs, tables))
    plans, malformed = live.plans(texts, where), live.of_malformed()
    found = {name: plans[name] if isinstance(query, _Sparql) else query for name, query in queries.items()}
    return found | {query: malformed[name] for name, query in kept.items()}


def _query_of_malformed(name: str, stream: StreamConfig, queries: Collection[str]) -> str:
    """The name of the query whose rows are malformed triples of an input. UserError where there can be none."""
    where = f"inputs.{name}.malformed"
    if stream.time == "":
        raise UserError(f"{where}: side is for streams; leave it out, or write error")
    if "" in queries:
        raise UserError(f"{where}: side: the query has no name; write name: NAME, as malformed triples have a name, too")
    query = f"malformed.{name}"
    check_query_name(query, where, queries)
    return query


def _queries_of(queries: object) -> dict[str, QueryText | _Sparql]:
    """By name. UserError for one that is no query."""
    from swjoin.frontends.sql.planner import QueryText

    if not isinstance(queries, list) or not queries:
        count = "0 queries" if isinstance(queries, list) else "no list of queries"
        raise UserError(f"queries: {count}; give one or more, as [{{name: NAME, sql: SELECT ...}}]")
    found: dict[str, QueryText | _Sparql] = {}
    for number, query in enumerate(queries):
        where = f"queries.{number}"
        languages = _LANGUAGES & query.keys() if isinstance(query, dict) else set()
        language = min(languages, default="sql")
        known = len(languages) == 1 and set(query) <= {"name", language, *(["functions"] if language == "sql" else [])}
        if not known or not isinstance(query[language], str):
            beside = "name: and functions: at most" if language == "sql" else "name: at most"
            raise UserError(
                f"{where}: {shown(query)} is no query; write sql:, or sparql:, and its text, and beside it {beside}"
            )
        if len(queries) > 1 and "name" not in query:
            raise UserError(
                f"{where}: one of {len(queries)} queries has no name; write name: NAME, under which its rows are found"
            )
        name = query.get("name", "")
        if "name" in query:
            check_query_name(name, f"{where}.name", found)
        if language == "sparql":
            found[name] = _Sparql(query["sparql"], f"{where}.sparql")
            continue
        given = query.get("functions", {})
        if not isinstance(given, dict):
            raise UserError(f"{where}.functions: expected a mapping of names to {_FUNCTION}, got {shown(given)}")
        functions = {name: _function_of(of, f"{where}.functions.{name}") for name, of in given.items()}
        found[name] = QueryText(query["sql"], functions, f"{where}.sql")
    return found


def _function_of(plain: object, where: str) -> Function:
    """UserError, which begins with where, for what names no function and its columns."""
    from swjoin.frontends.sql.functions import Function, declared
    from swjoin.plan.map_batches import is_importable

    if (
        not isinstance(plain, dict)
        or set(plain) != {"call", "schema"}
        or not all(isinstance(each, str) for each in plain.values())
    ):
        raise UserError(f"{where}: {shown(plain)} is no function; write {_FUNCTION}")
    if not is_importable(plain["call"]):
        raise UserError(f"{where}.call: {shown(plain['call'])} cannot be imported; write package.module:function")
    fields = parse_schema(plain["schema"], where)
    try:
        return Function(plain["call"], declared(fields))
    except UserError as error:
        raise error.prefixed(f"{where}.schema") from None


def _inputs_of(inputs: object) -> dict[str, StreamConfig]:
    """By name. UserError for one that is no input of a query."""
    if not isinstance(inputs, dict) or not inputs:
        raise UserError("inputs: missing; name each table of the query: inputs: {bid: {path: bids.parquet, time: ts}}")
    found: dict[str, StreamConfig] = {}
    for name, plain in inputs.items():
        if not isinstance(plain, dict):
            raise UserError(f"inputs.{name}: expected a mapping, got {shown(plain)}")
        if name.casefold() in map(str.casefold, found):
            raise UserError(f"inputs.{name}: the name is given twice")
        for key, reason in _OF_JOINS.items():
            if key in plain:
                raise UserError(f"inputs.{name}: {key}: {reason}; leave it out")
        try:
            stream = stream_from_plain({"time": "", **plain, "key": []}, f"inputs.{name}")
        except UserError as error:
            raise (error if error.text("keys").startswith(f"inputs.{name}") else error.prefixed(f"inputs.{name}")) from None
        if stream.generate is not None:
            stream = replace(stream, time=stream.time or "ts")
        elif stream.path is None and not stream.live:
            raise UserError(f"inputs.{name}: give a path, a live stream (flight, kafka or watch), or generate")
        if stream.flight is not None and name in _OF_RUNS:
            raise UserError(f"inputs.{name}: clients know a run's {name} by this name; name the stream otherwise")
        if stream.live and not stream.time:
            raise UserError(f"inputs.{name}: a live stream needs its time column; write time: COLUMN")
        same = next((other for other, of in found.items() if stream.iri is not None and of.iri == stream.iri), None)
        if same is not None:
            raise UserError(f"inputs.{name}: input {same} is <{stream.iri}>, too; give each an IRI of its own")
        found[name] = stream
    return found
