"""Writes diagrams and tables of states into the pages that describe them, from the tables of transitions in the code.

What: `written(page) -> str`; `python docs/mkdocs/transitions.py` writes the pages.
Why: a diagram by hand goes stale; the table in the code decides which steps are legal.
Stays out: what the states mean (the pages).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from swjoin.cluster.master import moves, phases

MECHANISMS = Path(__file__).resolve().parents[1] / "mechanisms"
BEGIN, END = "<!-- transitions: written by docs/mkdocs/transitions.py -->\n", "<!-- end of transitions -->\n"
PAGES: dict[str, Mapping[tuple[StrEnum, StrEnum], str]] = {
    "master-phases.md": phases.TRANSITIONS,  # type: ignore[dict-item]
    "state-movement.md": moves.TRANSITIONS,  # type: ignore[dict-item]
}


def drawn(table: Mapping[tuple[StrEnum, StrEnum], str]) -> str:
    """The diagram and the table."""
    states = list(dict.fromkeys(state for pair in table for state in pair))
    first = [s for s in states if all(s != after for _, after in table)]
    last = [s for s in states if all(s != before for before, _ in table)]
    arrows = [f"    [*] --> {s}" for s in first]
    arrows += [f"    {before} --> {after}" for before, after in table]
    arrows += [f"    {s} --> [*]" for s in last]
    rows = [f"| {before} | {after} | {on} |" for (before, after), on in table.items()]
    diagram = "\n".join(["```mermaid", "stateDiagram-v2", *arrows, "```"])
    return "\n".join([diagram, "", "| from | to | when |", "|---|---|---|", *rows]) + "\n"


def written(page: str) -> str:
    """The page with its diagram and table as the code has them."""
    before, rest = (MECHANISMS / page).read_text().split(BEGIN)
    return before + BEGIN + "\n" + drawn(PAGES[page]) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    for name in PAGES:
        (MECHANISMS / name).write_text(written(name))
