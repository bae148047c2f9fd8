"""Files of an input: paths, lists, globs, hive folders and object stores, found in one order.

What: `find_files`, `list_files`, `InputFiles`, `DataFile`, `file_format`, `given_paths`, `is_remote`, `text_of`,
`refusing`.
Why: sources, the API, checkpoints, the protection of inputs and `verify` mean the same files by the same words.
Stays out: the content of files (`connectors.files.formats`).

Files are ordered by the components of their paths; of a list, entry by entry. Local files without partition values are plain
paths.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from swjoin.config.connectors import TextConfig
from swjoin.core.errors import UserError, one_line
from swjoin.core.resources import relative_to
from swjoin.core.storage import check_name

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)
_PACKED = (".gz", ".bz2", ".zst", ".lz4")  # text that Arrow unpacks while it reads
_SUFFIXES = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    **{f"{text}{packed}": "CSV" for text in (".csv", ".tsv") for packed in ("", *_PACKED)},
    **{f"{text}{packed}": "JSON lines" for text in (".jsonl", ".ndjson", ".json") for packed in ("", *_PACKED)},
    **{f"{text}{packed}": "RDF" for text in (".nt", ".nq", ".ttl", ".trig") for packed in ("", *_PACKED)},
    **{f".txt{packed}": "RDF lines" for packed in ("", *_PACKED)},
    ".orc": "ORC",
    ".arrow": "Arrow IPC",
    ".feather": "Arrow IPC",
    ".ipc": "Arrow IPC",
    ".arrows": "Arrow IPC",
}
_REMOTE = re.compile(r"(s3|gs|gcs|abfss?|hdfs|viewfs)://", re.IGNORECASE)
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_GLOB = re.compile(r"[*?[]")
_SHOWN = 5  # directory entries in a message
_LONGEST = 1000  # characters of a path, or of a library's text, in a message

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class DataFile:
    """A file of an object store, of a hive folder, or read in a way of its own. path: in its file system. filesystem:
    pyarrow's; None: local files. scheme: such as `s3://`. partition: the columns that the names of its folders give, one value
    each. text: how it is read, if that was given.
    """

    path: str
    filesystem: Any = field(default=None, compare=False)
    scheme: str = ""
    partition: Mapping[str, pa.Scalar] = field(default_factory=dict, compare=False, hash=False)
    text: TextConfig | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.scheme}{self.path}"

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix


File: TypeAlias = Path | DataFile


@dataclass(frozen=True)
class InputFiles:
    """The files of an input, in the order of reading, all of one format. unread: a warning about entries of its directories
    that are no data files."""

    files: list[File]
    unread: str | None = None

    @property
    def format(self) -> str:
        return str(file_format(self.files[0]))


def file_format(path: File | PurePosixPath) -> str | None:
    """Format by extension; None for an unknown extension."""
    name = path.name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def text_of(path: File) -> TextConfig:
    """How a file of text is read."""
    return (path.text if isinstance(path, DataFile) else None) or TextConfig()


def delimiter_of(path: File) -> str:
    """What separates the fields of a text file: as given, or by extension."""
    return text_of(path).delimiter or ("\t" if ".tsv" in path.name.lower() else ",")


def partition_of(file: File) -> Mapping[str, pa.Scalar]:
    """The columns that the names of a file's folders give, one value each."""
    return file.partition if isinstance(file, DataFile) else {}


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether this names a file of an object store."""
    return _REMOTE.match(os.fspath(path)) is not None


def given_paths(value: Paths) -> list[str]:
    """The paths of an input, as given. UserError for an empty one, or none."""
    texts = [os.fspath(v) for v in ([value] if isinstance(value, (str, os.PathLike)) else value)]
    if not texts:
        raise UserError("the list of paths is empty; name at least one file")
    if not all(texts):
        raise UserError("the path is empty; write . for the working directory")
    return texts


def split_paths(text: str) -> str | tuple[str, ...]:
    """LEFT or RIGHT of a command line: a path, or several with commas between them. A comma in the name of a file that exists
    separates nothing."""
    parts = [part for part in text.split(",") if part]
    return tuple(parts) if len(parts) > 1 and not os.path.exists(text) else text


def local_paths(value: Paths) -> list[Path]:
    """The files of this machine that are read, with their directories, as far as they exist: for checks of outputs."""
    named: list[Path] = []
    for given in [value] if isinstance(value, (str, os.PathLike)) else value:
        text = os.fspath(given)
        if not is_remote(text):
            path = _local(text)
            named += [path] if os.path.exists(path) else [Path(match) for match in glob.iglob(str(path), recursive=True)]
    found = list(named)
    for path in named:
        for folder, folders, _ in os.walk(path):
            folders[:] = [name for name in folders if name[0] not in "._"]
            found += [Path(folder, name) for name in folders]
    return found


def local_path(file: File) -> Path | None:
    """The path of a file of this machine."""
    if isinstance(file, DataFile):
        return Path(file.path) if file.filesystem is None else None
    return file


def open_input(file: File) -> Any:
    """What a reader of pyarrow takes: the path of a local file; of others, a file open for random access."""
    if not isinstance(file, DataFile):
        return file
    return file.path if file.filesystem is None else file.filesystem.open_input_file(file.path)


def open_random(file: File) -> Any:
    """A file open for random access."""
    import pyarrow as pa

    found = open_input(file)
    return pa.OSFile(str(found)) if isinstance(found, (str, Path)) else found


def open_stream(file: File) -> Any:
    """A file open for reading from its start, decompressed as its extension says."""
    import pyarrow as pa

    if isinstance(file, DataFile) and file.filesystem is not None:
        return file.filesystem.open_input_stream(file.path, compression="detect")
    return pa.input_stream(file.path if isinstance(file, DataFile) else str(file))


def file_size(file: File) -> int:
    """Bytes of a file. OSError when it is not there."""
    if isinstance(file, DataFile) and file.filesystem is not None:
        return int(file.filesystem.get_file_info(file.path).size or 0)
    return os.path.getsize(str(file))


def list_files(value: Paths, text: TextConfig | None = None) -> list[File]:
    """The files of `find_files`."""
    return find_files(value, text).files


def find_files(value: Paths, text: TextConfig | None = None) -> InputFiles:
    """The data files of a path, a glob or a list of these. UserError when there are none, when they have several formats, or
    when one is named twice. text: how text is read, if that is given."""
    files: list[File] = []
    warnings = []
    for path in given_paths(value):
        found, unread = (_find_remote if is_remote(path) else _find_local)(path)
        files += found
        warnings += [] if unread is None else [unread]
    first: dict[str, File] = {}
    for file in files:
        other = first.setdefault(str(file), file)
        if other is not file:
            raise UserError(f"{file}: is named twice, and its rows would be joined twice; name it once")
    if len(formats := {str(file_format(f)) for f in files}) > 1:
        where = value if isinstance(value, (str, os.PathLike)) else _folder(files)
        raise UserError(f"{where}: mixes {' and '.join(sorted(formats))}; keep one format per directory")
    _refuse_other_partitions(files)
    if text is not None:
        files = [replace(f if isinstance(f, DataFile) else DataFile(str(f)), text=text) for f in files]
    _LOG.debug("%s: %d %s file(s), in this order: %s", value, len(files), file_format(files[0]), _few(files))
    return InputFiles(files, "; ".join(warnings) or None)


def _few(files: list[File]) -> str:
    return ", ".join(map(str, files if len(files) <= 3 else [*files[:2], "...", files[-1]]))


def _folder(files: Iterable[File]) -> str:
    return os.path.commonpath([str(file) for file in files]) or "the list"


def _refuse_other_partitions(files: list[File]) -> None:
    """UserError when some files have other partition columns, or of other types, than the first."""
    first = partition_of(files[0])
    for file in files[1:]:
        mine = partition_of(file)
        if list(mine) != list(first):
            names = [", ".join(p) or "none" for p in (mine, first)]
            raise UserError(
                f"{file}: its folders give columns {names[0]}, those of {files[0]} {names[1]}; read folders of one kind"
            )
        for name, value in mine.items():
            if value.type != first[name].type:
                raise UserError(
                    f"{file}: partition column {name} is {value.type}, before it was {first[name].type}; "
                    "read their common folder"
                )


# ---------------------------------------------------------------- finding


def _local(text: str) -> Path:
    """A local path; `file://` and `~` are resolved."""
    if text.lower().startswith("file://"):
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise UserError(f"{text}: names the host {parts.netloc}; write file:///PATH")
        text = unquote(parts.path)
    elif (scheme := _URI.match(text)) is not None:
        raise UserError(f"{text}: no files are read from {scheme.group()}; known are file, s3, gs, abfs and hdfs")
    return Path(os.path.expanduser(text))


def _find_local(text: str) -> tuple[list[File], str | None]:
    path = _local(text)
    check_name(path)
    if os.path.isfile(path):  # unlike Path.is_file, it accepts names that are too long
        if file_format(path) is None:
            raise UserError(f"{path}: unknown extension; known are {', '.join(_SUFFIXES)}")
        return [path], None
    if os.path.exists(path) and not os.path.isdir(path):
        raise UserError(f"{path}: is neither a file nor a directory; pipes and devices cannot be read twice: save it as a file")
    base, matches = path, [path]
    if not os.path.isdir(path):
        if _GLOB.search(str(path)) is None:
            raise UserError(f"{text[:_LONGEST]}: no such file or directory{relative_to(path)}")
        base = Path(*itertools.takewhile(lambda part: not _GLOB.search(part), path.parts))
        matches = [Path(match) for match in glob.iglob(str(path), recursive=True)]
    found, unread = _data_files(_below, [(str(m), m.is_dir()) for m in matches], str(base), text)
    return _partitioned(found, str(base), None, ""), unread


def _find_remote(text: str) -> tuple[list[File], str | None]:
    from pyarrow.fs import FileSelector, FileType

    scheme, _, rest = text.partition("://")
    rest, _, query = rest.partition("?")
    parts = rest.rstrip("/").split("/")
    literal = list(itertools.takewhile(lambda part: not _GLOB.search(part), parts))
    pattern = parts[len(literal) :]
    if not literal:
        raise UserError(f"{text}: name the bucket; only what follows it may be a pattern")
    with _reaching(text):
        filesystem, root = _file_system(scheme.lower(), "/".join(literal), query, text)
        info = filesystem.get_file_info(root)
        if info.type == FileType.File and not pattern:
            if file_format(PurePosixPath(root)) is None:
                raise UserError(f"{text}: unknown extension; known are {', '.join(_SUFFIXES)}")
            return [DataFile(root, filesystem, f"{scheme}://")], None
        if info.type == FileType.NotFound:
            raise UserError(f"{text}: no such file or folder")
        matches = [(root, True)]
        if pattern:
            entries = filesystem.get_file_info(FileSelector(root, recursive=True))
            matches = [
                (entry.path, entry.type == FileType.Directory)
                for entry in entries
                if _matches(PurePosixPath(entry.path).relative_to(root).parts, pattern)
            ]

        def below(path: str) -> dict[str, bool]:
            found = filesystem.get_file_info(FileSelector(path, recursive=True))
            return {entry.path: entry.type == FileType.File for entry in found if entry.type != FileType.Directory}

        found, unread = _data_files(below, matches, root, text)
        return _partitioned(found, root, filesystem, f"{scheme}://"), unread


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the components of a path match those of a pattern; `**` matches any number of components."""
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


@contextmanager
def _reaching(text: str) -> Iterator[None]:
    """Turns errors of a file system into UserError with the path as given."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise UserError(f"{text}: cannot be reached: {one_line(error, _LONGEST)}") from None


def _file_system(scheme: str, rest: str, query: str, text: str) -> tuple[Any, str]:
    """The file system of a URI and the path in it, as pyarrow reads URIs; for S3 also `anonymous=true`."""
    from pyarrow import fs

    if "@" in rest and ":" in rest.partition("@")[0]:
        raise UserError(f"{scheme}://...: the path holds a password; give credentials in the environment")
    options = dict(parse_qsl(query))
    if scheme == "s3" and options.pop("anonymous", "false").lower() in ("true", "1"):
        known = {"region", "scheme", "endpoint_override"}
        if options.keys() - known:
            raise UserError(f"{text}: with anonymous=true the options are {', '.join(sorted(known))}")
        return fs.S3FileSystem(anonymous=True, **options), rest
    quoted = quote(rest, safe="/=%:+@,~!$&'()*;")
    filesystem, path = fs.FileSystem.from_uri(f"{scheme}://{quoted}{'?' if options else ''}{urlencode(options)}")
    return filesystem, path


Listing: TypeAlias = Callable[[str], dict[str, bool]]  # the entries below a directory that are none -> whether each is a file


def _below(path: str) -> dict[str, bool]:
    """The listing of a local directory. pyarrow's follows a link to a folder above without end."""
    found: dict[str, bool] = {}
    seen: set[str] = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            raise UserError(f"{folder}: is a link to a folder that is read already; its rows would be joined twice")
        seen.add(real)
        folders[:] = [name for name in folders if name[0] not in "._"]
        found |= {joined: os.path.isfile(joined) for name in names if (joined := os.path.join(folder, name))}
    return found


def _data_files(listing: Listing, matches: list[tuple[str, bool]], base: str, text: str) -> tuple[list[str], str | None]:
    """Paths of the data files among these entries and below them, in path order, and a warning about other entries.

    matches: (path, whether it is a directory). base: names that start with `_` or `.` below it are marks of the writer, and
    are ignored.
    """
    entries: dict[str, bool] = {}
    for path, is_directory in matches:
        entries |= listing(path) if is_directory else {path: True}
    seen = {path: PurePosixPath(path).relative_to(base).parts for path in entries}
    seen = {path: parts for path, parts in seen.items() if not any(part[0] in "._" for part in parts)}
    formats = {path: file_format(PurePosixPath(path)) for path in seen if entries[path]}
    text_alone = set(formats.values()) <= {None, "RDF lines"}  # beside other files, .txt files are notes
    files = [path for path, kind in formats.items() if kind is not None and (text_alone or kind != "RDF lines")]
    if not files:
        remedy = f"({', '.join(_SUFFIXES)})"
        raise UserError(f"{text[:_LONGEST]}: {'holds' if matches == [(base, True)] else 'matches'} no data files {remedy}")
    for path in files:
        check_name(Path(path))
    other = sorted("/".join(seen[path]) for path in seen.keys() - set(files))
    return sorted(files, key=seen.__getitem__), _unread(base, other)


def _unread(base: str, names: list[str]) -> str | None:
    if not names:
        return None
    shown = [n if n.isprintable() else ascii(n) for n in names[:_SHOWN]]
    listed = ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    many = f"{len(names)} files are" if len(names) > 1 else "1 file is"
    return f"{base}: {many} not read: {listed}; name files of one format, or give their folder"


def _partitioned(paths: list[str], base: str, filesystem: Any, scheme: str) -> list[File]:
    """These files with the values that the names of their folders (`NAME=VALUE`) below `base` give. Types are pyarrow's for
    these names: int32 or string."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    folders = [PurePosixPath(path).relative_to(base).parent.as_posix() for path in paths]
    if not any("=" in folder for folder in folders):
        return [Path(path) if filesystem is None else DataFile(path, filesystem, scheme) for path in paths]
    with _reaching(base):
        names = ds.HivePartitioning.discover(infer_dictionary=False)
        options = ds.FileSystemFactoryOptions(base, names, exclude_invalid_files=False)
        factory = ds.FileSystemDatasetFactory(filesystem or LocalFileSystem(), paths, ds.ParquetFileFormat(), options)
        schema = factory.inspect(fragments=0)  # of the names alone
        partitioning = ds.HivePartitioning(schema)
        values = [ds.get_partition_keys(partitioning.parse(f"{folder}/")) for folder in folders]
    return [
        DataFile(path, filesystem, scheme, {f.name: pa.scalar(found[f.name], f.type) for f in schema if f.name in found})
        for path, found in zip(paths, values, strict=True)
    ]


# ---------------------------------------------------------------- errors


@contextmanager
def refusing(path: File) -> Iterator[None]:
    """Turns errors of libraries into UserError with the file."""
    import pyarrow as pa

    try:
        yield
    except UserError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError) as error:
        text = one_line(error, _LONGEST)
        raise UserError(f"{path}: cannot be read as {file_format(path)}: {text or type(error).__name__}") from None
