"""Back-ticked names in docstrings and documents exist: in the code, among files, options, commands and keys."""

from __future__ import annotations

import ast
import builtins
import functools
import keyword
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "swjoin"
UNITS = r"_(us|ns|s|bytes|ratio|count|per_s|text)$"
# Names that exist outside this repository, or stand for others; each with its reason.
EXCEPTIONS = {
    "MPI_Comm_shrink": "a function of Open MPI, which mpi4py names otherwise",
    "null_count": "an attribute of pyarrow.Array",
    "path.to.key": "stands for a key of the configuration",
    "run_COMMAND": "stands for run_join and others",
    "user": "a column of an example",
    **dict.fromkeys(("price", "left.price", "left_price", "right.price", "right_price"), "a column of an example"),
}


@dataclass
class Names:
    """modules: module -> names at its top level; classes: class -> members and bases; files: file -> names used in it."""

    modules: dict[str, set[str]] = field(default_factory=dict)
    classes: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, set[str]] = field(default_factory=dict)
    files: dict[Path, set[str]] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)

    def add(self, path: Path, text: str) -> None:
        tree = ast.parse(text)
        used = self.files.setdefault(path, set())
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.modules[module] = top = bound(tree.body)
        top |= {p.stem for p in path.parent.iterdir()} if path.name == "__init__.py" else set()
        prose = {id(docstring) for docstring in docstrings_of(tree)}
        for node in ast.walk(tree):
            used |= identifiers(node)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                self.words |= {node.value} if re.fullmatch(r"[\w.:*/%-]+", node.value) else set()
                self.words |= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", node.value))
            if isinstance(node, ast.ClassDef):
                selves = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
                self.classes.setdefault(node.name, set()).update(bound(node.body) | selves)
                self.bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))

    def members(self, name: str) -> set[str]:
        return self.classes.get(name, set()).union(*(self.members(base) for base in self.bases.get(name, ())))

    @functools.cached_property
    def public(self) -> set[str]:
        """Names that need no owner, once all modules have been added: modules and what they define, keys of the configuration,
        options, commands, values."""
        parts = {part for module in self.modules for part in module.split(".")}
        return self.words.union(parts, LANGUAGE, self.keys, *self.modules.values())

    @functools.cached_property
    def keys(self) -> set[str]:
        """Keys of the configuration: fields of its sections, which carry their unit in the code only."""
        sections = [name for module, top in self.modules.items() if module.startswith("swjoin.config") for name in top]
        fields = set().union(*(self.classes.get(name, set()) for name in sections))
        return fields | {re.sub(UNITS, "", name) for name in fields}

    def resolves(self, span: str, path: Path | None = None) -> bool:
        """Whether every name in a back-ticked span exists; with a path, also names that only this file uses."""
        return span in self.words or all(name in EXCEPTIONS or self._exists(name, path) for name in names_in(span))

    def _known(self, name: str, path: Path | None) -> bool:
        return name in self.public or name in self.files.get(path or PACKAGE, ())

    def _exists(self, name: str, path: Path | None) -> bool:
        if self._known(name, path):
            return True
        if "/" in name or re.search(r"\.(py|sh|md|yaml|json|html|cfg|toml)$", name):
            return any((folder / name).exists() for folder in (ROOT, PACKAGE, (path or ROOT).parent))
        parts = name.split(".")
        if len(parts) < 2:
            return False
        homes = [(), ("swjoin",), path.relative_to(ROOT).parts[:-1] if path else ()]
        if any(self._in_module([*home, *parts]) for home in homes) or (ROOT / Path(*parts)).with_suffix(".py").exists():
            return True
        if parts[0] in self.classes:
            return parts[1] in self.members(parts[0])
        if parts[0] in self.members("RunConfig"):
            return all(part in self.keys for part in parts)
        return f"swjoin.{parts[0]}" not in self.modules and all(self._known(part, path) for part in parts)

    def _in_module(self, parts: list[str]) -> bool:
        """Whether a dotted path is a module, or a name in one, or a member of a class in one."""
        for end in range(len(parts), 1, -1):
            module, after = ".".join(parts[:end]), parts[end:]
            if module in self.modules:
                inside = not after or after[0] in self.modules[module]
                return inside and (len(after) < 2 or after[1] in self.members(after[0]))
        return False


def bound(body: list[ast.stmt]) -> set[str]:
    """Names that the statements of a module or class define."""
    found = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.If | ast.Try):
            found |= bound(node.body) | bound(node.orelse)
        else:
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


def identifiers(node: ast.AST) -> set[str]:
    """Names that a node of code itself carries."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {part for alias in node.names for part in alias.name.split(".")} | {a.asname for a in node.names if a.asname}
    found = (getattr(node, key, None) for key in ("id", "attr", "arg", "name"))
    return {name for name in found if isinstance(name, str)}


LANGUAGE = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *sys.stdlib_module_names, "true", "false", "null", "nan"}


def docstrings_of(tree: ast.AST) -> list[ast.Constant]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = [n.body[0] for n in ast.walk(tree) if isinstance(n, owners) and n.body]
    values = [n.value for n in firsts if isinstance(n, ast.Expr)]
    return [v for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def names_in(span: str) -> list[str]:
    """The names that a span states: the callable of a call, options, `swjoin` commands; none in values and expressions."""
    span = " ".join(span.split())
    command = re.match(r"(?:mpirun .*|python -m )*(swjoin[\w.]*|\./run\.sh)(?: (\w+))?(.*)$", span)
    if command and " " in span:
        return [name for name in command.groups()[:2] if name and name != "./run.sh" and not name.isupper()] + re.findall(
            r"--[\w-]+", command[3]
        )
    if re.fullmatch(r"--?[a-z][\w-]*(?:[ =].*)?", span):
        return [re.split("[ =]", span)[0]]
    head = re.match(r"\.?([A-Za-z_][\w./-]*?)(?:[(\[=:].*| -> .*)?$", span)
    return [head[1]] if head and not head[1].endswith(("...", "_", "/")) else []


@functools.cache
def package_names() -> Names:
    """Made when a test asks for them: every process of a session of tests imports this module."""
    names = Names()
    for path in sorted(PACKAGE.rglob("*.py")):
        names.add(path, path.read_text())
    return names


def unresolved(path: Path, text: str, names: Names) -> list[str]:
    spans = [span for docstring in docstrings_of(ast.parse(text)) for span in re.findall(r"`+([^`]+)`+", str(docstring.value))]
    return [span for span in spans if not names.resolves(span, path)]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_names_in_docstrings_exist(path: Path) -> None:
    assert unresolved(path, path.read_text(), package_names()) == []


@pytest.mark.parametrize(
    "span",
    [
        "sources.population",
        "config.MeasureConfig",
        "watchers.master_view",
        "examine_all",
        "pair_counts",
        "Delivery.groups_in_order",
        "core.data_messages.Deliveries",
        "serve_results(log) -> None",
        "swjoin/sources/population.py",
        "swjoin foretell",
        "swjoin run --foretell",
        "--foretell",
        "python -m swjoin.plans",
        "cluster.partition_size",
    ],
)
def test_wrong_names_are_found(span: str) -> None:
    path = PACKAGE / "core" / "hashing.py"
    assert unresolved(path, f'"""A header: `{span}`."""\n', package_names()) == [span]
    assert unresolved(path, f'class A:\n    def f(self):\n        """`{span}`"""\n', package_names()) == [span]


def test_right_names_are_found() -> None:
    spans = [
        "core.data_messages.Delivery.groups",
        "Delivery.groups",
        "mix64",
        "swjoin run -n 6",
        "cluster.mini_buffer: 5MB",
        "6h",
    ]
    text = "".join(f"`{span}` " for span in [*spans, "swjoin/core/hashing.py", "--set", "pair_hash(left, right)"])
    assert unresolved(PACKAGE / "core" / "hashing.py", f'"""{text}"""\n', package_names()) == []


def test_exceptions_are_needed() -> None:
    used = {
        name
        for text in map(Path.read_text, PACKAGE.rglob("*.py"))
        for s in re.findall(r"`([^`]+)`", text)
        for name in names_in(s)
    }
    assert set(EXCEPTIONS) <= used


# Decision 019 has the table of old names; old releases in the changelog name what there was then.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "decisions" / "019-rooms-on-nine-floors.md")
FOREIGN = {
    "KillWait": "a setting of Slurm",
    "ConvertOptions": "of pyarrow.csv",
    "spark.python.worker.reuse": "a setting of Spark",
    **dict.fromkeys(("DoPut", "DoGet", "DoAction", "ListFlights", "GetFlightInfo", "GetSchema"), "a call of Arrow Flight"),
}


def names_of_code(text: str) -> list[str]:
    """Back-ticked names that can only be names of code: classes, their members, paths that start with a room."""
    text = re.sub(r"(?ms)^( *)```.*?^\1```$", "", text)
    rooms = "|".join(p.parent.name for p in PACKAGE.glob("*/__init__.py"))
    shape = rf"[A-Z][a-z]+(?:[A-Z]\w*)+(?:\.\w+)?|[A-Z][a-z]+\.[a-z]\w+|swjoin(?:\.\w+)+(?:\(.*\))?|(?:{rooms})(?:\.\w+)+"
    return [span for span in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(shape, span)]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_in_documents_exist(path: Path) -> None:
    names = names_of_code(path.read_text())
    assert [name for name in names if name not in FOREIGN and not package_names().resolves(name)] == []


def test_wrong_names_in_documents_are_found() -> None:
    names = names_of_code("a `JoinOfCounts`, `Delivery.nobody`, `swjoin.foretell`, `runtime.planner`, `Delivery`, `x_y`\n")
    assert [name for name in names if not package_names().resolves(name)] == names
    assert names == ["JoinOfCounts", "Delivery.nobody", "swjoin.foretell", "runtime.planner"]
