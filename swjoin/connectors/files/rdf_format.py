"""RDF files as Arrow batches: a triple per row, columns s, p and o, terms as text in N-Triples syntax.

What: `TERMS`, `rdf_schema`, `rdf_batches`; `is_anonymous`, of labels.
Why: graphs that queries look up come as N-Triples, N-Quads, Turtle or TriG; a run reads them as it reads any table.
Stays out: what terms mean, and files of timed triples (`frontends.rdf`); the other formats (`connectors.files.formats`).

The names of graphs are ignored. Labels of blank nodes stay as they are written, so that they mean the same node in all files of
an input; nodes without labels get some that depend on the file and their order in it, so that all processes that read it give
them the same ones, and no other file has them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.connectors.files.inputs import File, open_stream
from swjoin.core.errors import UserError, how_to_install, one_line

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = {".nt": "N_TRIPLES", ".nq": "N_QUADS", ".ttl": "TURTLE", ".trig": "TRIG"}
_WITHOUT_LABELS = (".ttl", ".trig")  # forms that have blank nodes without labels
TERMS = ("s", "p", "o")
_ANONYMOUS = 28  # hexadecimal digits from which on a label is one that the parser made


def rdf_schema() -> pa.Schema:
    """The columns of every file."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in TERMS])


def rdf_batches(path: File, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of a file with these columns. rows: of a batch. UserError, with the line, for what is no RDF 1.1."""
    try:
        import pyoxigraph
    except ModuleNotFoundError:
        raise UserError(
            "RDF files need pyoxigraph, which is missing", subject=str(path), remedy=how_to_install("rdf")
        ) from None
    suffixes = [suffix.lower() for suffix in Path(path.name).suffixes[-2:]]
    form = next(suffix for suffix in reversed(suffixes) if suffix in _FORMATS)
    labels = _Labels(str(path)) if form in _WITHOUT_LABELS else None
    found: dict[str, list[str]] = {name: [] for name in TERMS}
    with open_stream(path) as file:
        try:
            for quad in pyoxigraph.parse(file, getattr(pyoxigraph.RdfFormat, _FORMATS[form])):
                terms = (quad.subject, quad.predicate, quad.object)
                if any(isinstance(term, pyoxigraph.Triple) or getattr(term, "direction", None) for term in terms):
                    raise UserError(f"{path}: terms of RDF 1.2 are not read: {one_line(quad.object)}")
                for column, term in zip(found.values(), terms, strict=True):
                    column.append(str(term) if labels is None else labels.text(term))
                if len(found["s"]) == rows:
                    yield _batch(found, columns)
        except SyntaxError as error:
            place = f", line {error.lineno}" if error.lineno else ""
            raise UserError(f"{path}{place}: {one_line(error.msg)}") from None
    if found["s"]:
        yield _batch(found, columns)


def is_anonymous(label: str) -> bool:
    """Whether pyoxigraph has made the label of a blank node, which has none: it is of many hexadecimal digits."""
    return len(label) >= _ANONYMOUS and not label.strip("0123456789abcdef")


class _Labels:
    """Of blank nodes without labels, to which the parser gives random ones. A written label of that form is taken for one of
    these."""

    def __init__(self, path: str) -> None:
        self._prefix = f"_:anonymous{zlib.crc32(path.encode()):08x}n"
        self._found: dict[str, str] = {}

    def text(self, term: Any) -> str:
        spelled = str(term)
        label = spelled.removeprefix("_:")
        if label == spelled or not is_anonymous(label):
            return spelled
        return self._found.setdefault(label, f"{self._prefix}{len(self._found)}")


def _batch(found: dict[str, list[str]], columns: list[str]) -> pa.RecordBatch:
    """These columns of the rows so far, which are taken out."""
    import pyarrow as pa

    batch = pa.RecordBatch.from_arrays([pa.array(found[name], pa.string()) for name in columns], columns)
    for column in found.values():
        column.clear()
    return batch
