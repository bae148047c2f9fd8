"""RDF files as Arrow batches: a triple per row, columns s, p and o, terms as text in N-Triples syntax.

What: `rdf_schema`, `rdf_batches`.
Why: graphs that queries look up come as N-Triples, N-Quads, Turtle or TriG; a run reads them as it reads any table.
Stays out: what terms mean, and files of timed triples (`frontends.rdf`); the other formats (`connectors.files.formats`).

The names of graphs are ignored. Blank nodes without labels are numbered in the order of the file, so that all processes that
read it give them the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from swjoin.connectors.files.inputs import File, open_stream
from swjoin.core.errors import UserError, how_to_install, one_line

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = {".nt": "N_TRIPLES", ".nq": "N_QUADS", ".ttl": "TURTLE", ".trig": "TRIG"}
_COLUMNS = ("s", "p", "o")
_ANONYMOUS = 28  # hexadecimal digits from which on a label is one that the parser made


def rdf_schema() -> pa.Schema:
    """The columns of every file."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in _COLUMNS])


def rdf_batches(path: File, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of a file with these columns. rows: of a batch. UserError, with the line, for what is no RDF 1.1."""
    try:
        import pyoxigraph
    except ModuleNotFoundError:
        raise UserError(
            "RDF files need pyoxigraph, which is missing", subject=str(path), remedy=how_to_install("rdf")
        ) from None
    kind = next(name for suffix, name in _FORMATS.items() if suffix in path.name.lower())
    labels: dict[str, str] = {}
    found: dict[str, list[str]] = {name: [] for name in _COLUMNS}
    with open_stream(path) as file:
        try:
            for quad in pyoxigraph.parse(file, getattr(pyoxigraph.RdfFormat, kind)):
                terms = (quad.subject, quad.predicate, quad.object)
                if any(isinstance(term, pyoxigraph.Triple) or getattr(term, "direction", None) for term in terms):
                    raise UserError(f"{path}: terms of RDF 1.2 are not read: {one_line(quad.object)}")
                for column, term in zip(found.values(), terms, strict=True):
                    column.append(_text(term, labels))
                if len(found["s"]) == rows:
                    yield _batch(found, columns)
        except SyntaxError as error:
            place = f", line {error.lineno}" if error.lineno else ""
            raise UserError(f"{path}{place}: {one_line(error.msg)}") from None
    if found["s"]:
        yield _batch(found, columns)


def _text(term: Any, labels: dict[str, str]) -> str:
    spelled = str(term)
    label = spelled.removeprefix("_:")
    if label == spelled or len(label) < _ANONYMOUS or label.strip("0123456789abcdef"):
        return spelled
    return labels.setdefault(label, f"_:anonymous{len(labels)}")


def _batch(found: dict[str, list[str]], columns: list[str]) -> pa.RecordBatch:
    """These columns of the rows so far, which are taken out."""
    import pyarrow as pa

    batch = pa.RecordBatch.from_arrays([pa.array(found[name], pa.string()) for name in columns], columns)
    for column in found.values():
        column.clear()
    return batch
