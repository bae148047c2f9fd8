"""Writes docs/modules.md: every room of the package and every module in it, in the words of their own docstrings.

What: `modules() -> str`; `python docs/mkdocs/modules.py` writes the page.
Why: a table by hand goes stale; docstrings are read where the code is changed.
Stays out: what the rooms are for as a whole (docs/architecture.md).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "modules.md"


def _first_lines(path: Path) -> str:
    """The first paragraph of a module's docstring, as one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("|", "\\|")


def _folder(folder: Path) -> Iterator[str]:
    yield f"\n## `{folder.relative_to(ROOT)}/`\n\n{_first_lines(folder / '__init__.py')}\n"
    files = [p for p in sorted(folder.glob("*.py")) if p.name not in ("__init__.py", "__main__.py")]
    if files:
        yield "| module | |\n|---|---|"
        yield from (f"| [{p.stem}](../{p.relative_to(ROOT)}) | {_first_lines(p)} |" for p in files)
    for below in sorted(p.parent for p in folder.glob("*/__init__.py")):
        yield from _folder(below)


def modules() -> str:
    """The page."""
    head = (
        "# Modules\n\nWritten from the docstrings by `python docs/mkdocs/modules.py`; what the rooms are for as a whole is in"
    )
    lines = [f"{head}\n[architecture.md](architecture.md)."]
    for room in sorted(p.parent for p in (ROOT / "swjoin").glob("*/__init__.py")):
        lines += _folder(room)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(modules())
