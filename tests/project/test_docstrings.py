"""Back-ticked names in the package's docstrings exist.

What: `Names` holds what a name may be: an identifier of the module's own code, a definition of the package, a module, a path of
the repository, a command or an option, a literal, or an external name with its reason in `EXTERNAL`.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import swjoin
from swjoin.cli.main import build_parser
from tests.conftest import ROOT

PACKAGE = ROOT / "swjoin"
FILES = sorted(PACKAGE.rglob("*.py"))
NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SUFFIXES = r"json|ya?ml|parquet|csv|py|jar|log|txt|html|md|jsonl|arrow|sh"
UNITS = r"(_us|_s|_bytes|_bytes_per_s|_ratio)?"  # of fields; the keys of the YAML files have no unit
EXTERNAL = {  # name: why neither code nor parser has it
    "MPI_Comm_shrink": "of the MPI standard",
    "rate": "a function of Prometheus",
    "error_cb": "a setting of Kafka's client",
    "nan": "a float's text",
    '{"m":MESSAGE}': "a message as text",
    "help COMMAND": "arguments as they are typed",
    "COMMAND --help": "arguments as they are typed",
    ">/dev/null": "of the shell",
    "null_count": "an attribute of Arrow's arrays",
    "lag_rows": "a key of a status, built from the stream's unit",
    "user: int64, ts: timestamp[us], note: string": "a declared schema",
    "left_price < right_price and not right.cancelled": "a residual predicate",
    **dict.fromkeys(("price", "left_price", "right_price"), "columns of an example"),
    **dict.fromkeys(("left.name", "right.name", "left.price", "right.price"), "columns of an example"),
}


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name of the module, class or function, its docstring)."""
    for node in ast.walk(tree):
        if isinstance(node, NODES) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", "module"), text


def spans(text: str) -> list[str]:
    """What a docstring has between back-ticks, code blocks left out."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    return [re.sub(r"\s+", " ", span).strip() for span in re.findall(r"`([^`]+)`", text)]


def strings(tree: ast.Module) -> Iterator[str]:
    """Strings of the code; docstrings are none."""
    comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in comments:
            yield node.value


def words_in_code(tree: ast.Module) -> set[str]:
    """Identifiers of the code, and the words of its strings; docstrings do not count."""
    found = {word for text in strings(tree) for word in re.findall(r"\w+", text)}
    for node in ast.walk(tree):
        for field in ("id", "arg", "attr", "name", "asname", "rest"):
            if isinstance(value := getattr(node, field, None), str):
                found |= set(value.split("."))
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= set(node.module.split("."))
    return found


def members(node: ast.ClassDef) -> set[str]:
    """Methods, fields, and attributes that methods assign."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, FUNCTIONS):
            found.add(part.name)
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            found.add(part.attr)
    for part in node.body:
        found |= targets(part)
    return found


def targets(node: ast.stmt) -> set[str]:
    parts = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for part in parts for name in ast.walk(part) if isinstance(name, ast.Name)}


class Names:
    """What back-ticked text may name.

    classes: members of each class, with those of its bases. definitions: functions, classes, constants and members of the
    package. modules: dotted paths of modules, from each of their parents on. top: names at the top level of each module.
    """

    def __init__(self) -> None:
        self.trees = {path: ast.parse(path.read_text()) for path in FILES}
        self.classes: dict[str, set[str]] = defaultdict(set)
        self.definitions: set[str] = set()
        self.modules: set[str] = set()
        self.top: dict[str, set[str]] = defaultdict(set)
        self.parameters: dict[str, set[str]] = defaultdict(set)
        bases: dict[str, set[str]] = defaultdict(set)
        for path, tree in self.trees.items():
            parts = path.relative_to(ROOT).with_suffix("").parts
            suffixes = {".".join(parts[i:]).removesuffix(".__init__") for i in range(len(parts))} - {"__init__"}
            self.modules |= suffixes
            local = {name for node in tree.body for name in targets(node)}
            local |= {node.name for node in tree.body if isinstance(node, (ast.ClassDef, *FUNCTIONS))}
            for suffix in suffixes:
                self.top[suffix] |= local
            self.definitions |= local
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name] |= members(node)
                    bases[node.name] |= {n.id for base in node.bases for n in ast.walk(base) if isinstance(n, ast.Name)}
                elif isinstance(node, FUNCTIONS):
                    self.definitions.add(node.name)
                    given = node.args
                    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                    self.parameters[node.name] |= {arg.arg for arg in every}
        for _ in range(4):  # as deep as classes inherit
            for name, of in bases.items():
                self.classes[name] = self.classes[name].union(*(self.classes.get(base, set()) for base in of))
        for found in self.classes.values():
            self.definitions |= found
        configs = [name for name in self.classes if name.endswith("Config")]
        self.values = {word for tree in self.trees.values() for word in strings(tree)}
        self.settings = set().union(*(self.classes[name] for name in configs), self.classes["Request"])
        self.commands: set[str] = set()
        self.options: set[str] = set()
        stack: list[argparse.ArgumentParser] = [build_parser()]
        while stack:
            for action in stack.pop()._actions:
                self.options |= set(action.option_strings)
                if isinstance(action, argparse._SubParsersAction):
                    self.commands |= set(action.choices)
                    stack += action.choices.values()

    def resolves(self, span: str, code: set[str]) -> bool:
        """Whether a span names something. code: the words of the code of its module."""
        if span in EXTERNAL or span in code or span in self.values or not re.search(r"[A-Za-z]{2}", span) or _is_literal(span):
            return True
        if module := re.match(r"python -m ([\w.]+)", span):
            return module[1] in self.modules
        if prefix := re.match(r"([A-Za-z_]\w*_)(\.\.\.|<[\w ]+>|[A-Z]+)?$", span):
            return any(word.startswith(prefix[1]) for word in code | self.definitions | self.values)
        if setting := re.fullmatch(r"([a-z]\w+): [\w.]+", span):
            return self._is_setting(setting[1])
        span = re.sub(r"^mpirun .* -m (?=swjoin )", "", span)
        if span.startswith(("swjoin ", "-", "./run.sh ")):
            return self._is_command(span)
        if (ROOT / span).is_dir():
            return True
        if re.search(r"/|\.\w+$", span) and (_exists(span) or re.fullmatch(rf"[\w./*<>{{}}-]+\.({SUFFIXES})", span)):
            return _exists(span) or any(Path(span).name in word for word in code)
        if re.fullmatch(r"[A-Za-z_]\w*", span):
            return self._is_name(span, code)
        if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", span):
            return self._is_path(span, code)
        if shape := re.match(r"([A-Za-z_][\w.]*)\((.*?)\)", span):
            called, given = shape.groups()
            known = code | self.parameters[called.split(".")[-1]] | self.definitions | self.classes.get(called, set())
            return self.resolves(called, code) and all(
                self.resolves(word, known) for word in re.findall(r"[A-Za-z_]\w*", given)
            )
        return all(self.resolves(word, code) for word in re.findall(r"[A-Za-z_][\w.]*\w|[A-Za-z_]", span))

    def _is_setting(self, key: str) -> bool:
        """Whether a key, or section.key, is one of the configuration."""
        *section, name = key.split(".")
        known = self.classes["RunConfig"] >= set(section) and len(section) < 2
        return known and any(re.fullmatch(name + UNITS, word) for word in self.settings)

    def _is_command(self, span: str) -> bool:
        words = span.split()
        named = words[1] if words[0] == "swjoin" and len(words) > 1 else ""
        known = not re.fullmatch(r"\w+", named) or named in self.commands
        options = [word.split("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)]
        return known and all(option in self.options for option in options)

    def _is_name(self, name: str, code: set[str]) -> bool:
        known = name in self.definitions or name in self.modules or name in self.commands
        return known or name in code or hasattr(builtins, name) or keyword.iskeyword(name)

    def _is_path(self, path: str, code: set[str]) -> bool:
        if path in self.modules or self._is_setting(path):
            return True
        owner, name = path.rsplit(".", 1)
        last = owner.split(".")[-1]
        if last in self.classes:
            return name in self.classes[last] and (last == owner or self._is_path(owner, code))
        if owner == "swjoin":
            return name in swjoin.__all__
        if owner in self.modules:
            return name in self.top[owner] or name in {word for word in code if owner in code}
        if owner in code or (last in code and not last[0].isupper()):
            return name in code or name in self.definitions or _imports(path)
        return _imports(path)


def _exists(span: str) -> bool:
    return (ROOT / span).exists() or (PACKAGE / span).exists() or any(path.name == span for path in FILES)


def _is_literal(span: str) -> bool:
    """Numbers with units, versions, comparisons of versions."""
    return re.fullmatch(r"[<>=!-]*\d[\w.,:<>=\s-]*", span) is not None


def _imports(path: str) -> bool:
    """Whether a module outside the package has the attribute."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


def unresolved(names: Names, tree: ast.Module) -> list[str]:
    code = words_in_code(tree)
    return [f"{owner}: `{span}`" for owner, text in docstrings(tree) for span in spans(text) if not names.resolves(span, code)]


def test_back_ticked_names_exist(names: Names) -> None:
    wrong = [f"{path.relative_to(ROOT)} {line}" for path, tree in names.trees.items() for line in unresolved(names, tree)]
    assert wrong == [], "\n" + "\n".join(wrong)


def test_exceptions_are_needed(names: Names) -> None:
    used = {span for tree in names.trees.values() for _, text in docstrings(tree) for span in spans(text)}
    assert set(EXTERNAL) <= used


@pytest.mark.parametrize(
    "planted",
    [
        "no_such_name",
        "cluster.no_such_module",
        "WindowJoin.no_such_method",
        "forecast.memory.no_such_function",
        "swjoin fly",
        "--no-such-option",
        "docs/no-such-page.md",
        "no_such_call(x)",
        "json.no_such_function",
        "time.no_such_key",
        "run(no_such)",
        "swjoin run --no-such",
    ],
)
def test_planted_names_are_found(names: Names, planted: str) -> None:
    tree = ast.parse(f'"""It calls `run` as `{planted}` says."""\n\nimport json\n\n\ndef run(x): ...\n')
    assert unresolved(names, tree) == [f"module: `{planted}`"]


@pytest.mark.parametrize(
    "right", ["run", "x", "run(x)", "core.units", "Bounds.last", "swjoin plan", "--set", "6h", "json.dumps"]
)
def test_right_names_are_accepted(names: Names, right: str) -> None:
    tree = ast.parse(f'"""`{right}`"""\n\nimport json\n\n\ndef run(x): ...\n')
    assert unresolved(names, tree) == []
