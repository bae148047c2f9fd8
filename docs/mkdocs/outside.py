"""Links that leave docs/ (`../benchmarks/RESULTS.md`, `../mpi_configs/slurm.sh`) work in the site, too.

What: files outside docs/ that pages link to become files of the site, in `repository/`, and the links lead there; links of
those that are Markdown are followed in turn. A link to nothing stays as it is, so that `--strict` finds it.
Why: documents are read in the repository first, where such links are right; the site must not make us write others.
Stays out: pages written from the code (`reference`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "repository/"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")


def in_repository(src_uri: str) -> str:
    """Where a file of the site lies in the repository, relative to its root."""
    return src_uri.removeprefix(PREFIX) if src_uri.startswith(PREFIX) else f"docs/{src_uri}"


def in_site(path: str) -> str:
    """The other way round."""
    return path.removeprefix("docs/") if path.startswith("docs/") else PREFIX + path


def target_of(link: str, path: str) -> str | None:
    """The file that a link of the page at `path` in the repository leads to; of a directory its README, or its first page, or
    where it has none its first file."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if target.startswith(".."):
        return None
    if (ROOT / target).is_dir():
        files = [file for file in (ROOT / target).iterdir() if file.is_file()]
        inside = sorted(files, key=lambda file: (file.name != "README.md", file.suffix != ".md", file.name))
        return inside[0].relative_to(ROOT).as_posix() if inside else None
    return target if (ROOT / target).is_file() else None


def targets(text: str, path: str) -> Iterator[str]:
    """What the page at `path` in the repository links to, as far as it exists."""
    yield from filter(None, (target_of(link, path) for link in LINK.findall(text)))


def outside(pages: list[str]) -> set[str]:
    """Every file outside docs/ that is reached from pages, by links of links, too."""
    found: set[str] = set()
    waiting = [page for page in pages if (ROOT / page).is_file()]
    while waiting:
        page = waiting.pop()
        new = {t for t in targets((ROOT / page).read_text(), page) if not t.startswith("docs/")} - found
        found |= new
        waiting += [path for path in new if path.endswith(".md")]
    return found


def rewritten(text: str, src_uri: str) -> str:
    """The text of a page with its links as the site needs them."""
    path = in_repository(src_uri)

    def relink(match: re.Match[str]) -> str:
        target = target_of(match[1], path)
        if target is None:
            return match[1]
        return posixpath.relpath(in_site(target), posixpath.dirname(src_uri))

    return LINK.sub(relink, text)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File, InclusionLevel

    pages = [in_repository(file.src_uri) for file in files.documentation_pages()]
    for path in sorted(outside(pages)):
        # the README says what the pages say; it may be linked to, and needs no entry of its own
        level = InclusionLevel.NOT_IN_NAV if path == "README.md" else InclusionLevel.INCLUDED
        files.append(File.generated(config, PREFIX + path, abs_src_path=str(ROOT / path), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return rewritten(markdown, page.file.src_uri)
