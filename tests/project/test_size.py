"""Sizes that help thinking, as a ratchet: what is too large may shrink, and nothing new may become too large.

Functions of at most 70 lines and 5 levels outside kernels, 8 parameters, classes of at most 15 fields. `TOLERATED` has what
was larger when the ratchet was made; an entry that has become smaller is to be lowered, one that has gone to be removed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT
from tests.project.tolerated_sizes import TOLERATED

PACKAGE = ROOT / "swjoin"
LIMITS = {"lines": 70, "nesting": 5, "parameters": 8, "fields": 15}
NESTS = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match)


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(d).startswith("kernel") or "intrinsic" in ast.unparse(d) for d in function.decorator_list)


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Levels of blocks within a function; `elif` is on the level of its `if`, an inner function counts for itself."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, nesting(child, depth + (isinstance(child, NESTS) and not chained)))
    return deepest


def fields(node: ast.ClassDef) -> int:
    """Names declared in the body of a class, or assigned to `self` in any of its methods."""
    found = {s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
    for child in ast.walk(node):
        targets = child.targets if isinstance(child, ast.Assign) else [child.target] if isinstance(child, ast.AnnAssign) else []
        for target in targets:
            for part in ast.walk(target):
                stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                if stored and isinstance(part.value, ast.Name) and part.value.id == "self":
                    found.add(part.attr)
    return len(found)


def sizes(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Qualified name, what is measured, and how large it is."""
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield prefix + child.name, "fields", fields(child)
                stack.append((f"{prefix}{child.name}.", child))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name, a = prefix + child.name, child.args
                parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs]
                own = bool(parameters) and parameters[0].arg in ("self", "cls")
                if not is_kernel(child):
                    yield name, "lines", (child.end_lineno or child.lineno) - child.lineno + 1
                    yield name, "nesting", nesting(child)
                    yield name, "parameters", len(parameters) - own
                stack.append((f"{name}.", child))
            else:
                stack.append((prefix, child))


def too_large(package: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in sorted(package.rglob("*.py")):
        for name, what, size in sizes(ast.parse(path.read_text())):
            if size > LIMITS[what]:
                found[f"{path.relative_to(package)}:{name} {what}"] = size
    return found


def test_nothing_becomes_too_large() -> None:
    found = too_large(PACKAGE)
    grown = {name: size for name, size in found.items() if size > TOLERATED.get(name, 0)}
    assert not grown, f"over the limits {LIMITS}, or larger than tolerated"
    shrunk = {name: found.get(name) for name, size in TOLERATED.items() if found.get(name, 0) < size}
    assert not shrunk, "lower these in tests/project/tolerated_sizes.py, or remove them (None)"


def test_sizes_are_measured(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "class A:\n    x: int\n    def f(self, a, b, c, d, e, f, g, h, i):\n"
        "        for q in a:\n            if b:\n                pass\n            elif c:\n                pass\n"
        "        self.y = self.z = 1\n"
    )
    found = {(name, what): size for name, what, size in sizes(ast.parse((tmp_path / "one.py").read_text()))}
    assert found == {("A", "fields"): 3, ("A.f", "lines"): 7, ("A.f", "nesting"): 2, ("A.f", "parameters"): 9}
    assert too_large(tmp_path) == {"one.py:A.f parameters": 9}
