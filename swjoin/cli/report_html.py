"""A page of HTML that needs nothing else: escaping, tables, tiles, bars, embedded figures, and its style.

What: `Page` collects sections and writes the whole; `table`, `tiles`, `bar`, `picture`, `escape`.
Why: a report is sent by mail and opened years later: one file, no scripts, nothing fetched.
Stays out: what is reported (`cli.report`).
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_STYLE = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #5c6675; --line: #dfe3e9;
  --good: #0a7a4b; --bad: #b3261e; --warn: #8a5a00; --main: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1b212a; --ink: #e6eaf0; --soft: #9aa5b4;
  --line: #2d3642; --good: #4cc38a; --bad: #ff8a80; --warn: #e6b450; --main: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 2px; } h2 { font-size: 17px; margin: 0 0 12px; }
.soft { color: var(--soft); } code, pre, .digest { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace;
  font-size: 13px; }
section, .verdict { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 16px 0; }
.verdict { border-left: 6px solid var(--soft); } .verdict b { font-size: 18px; } .verdict p { margin: 4px 0 0; }
.good { border-left-color: var(--good); } .good b { color: var(--good); } .bad { border-left-color: var(--bad); }
.bad b { color: var(--bad); } .warn { border-left-color: var(--warn); } .warn b { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 12px; margin: 16px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.tile .value { font-size: 20px; font-weight: 600; overflow-wrap: anywhere; } .tile .label { color: var(--soft);
  font-size: 13px; }
.scroll { overflow-x: auto; } table { margin: 6px 0 14px; border-collapse: collapse; width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: 13px; }
  th:first-child, td:first-child, .text td, .text th { text-align: left; }
.text td:last-child { white-space: normal; }
img { width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
pre { overflow-x: auto; background: var(--paper); border: 1px solid var(--line); border-radius: 6px; padding: 12px;
  margin: 8px 0; }
.bar { position: relative; display: inline-block; width: 180px; height: 12px; background: var(--line);
  border-radius: 3px; vertical-align: middle; }
.bar span { position: absolute; left: 0; top: 0; bottom: 0; background: var(--main); border-radius: 3px; }
.bar i { position: absolute; top: -3px; bottom: -3px; width: 2px; background: var(--ink); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; } dt { color: var(--soft); }
  dd { margin: 0; }
summary { cursor: pointer; color: var(--soft); }
"""


def escape(value: object) -> str:
    """Text as text, wherever it stands in the page."""
    return html.escape(str(value), quote=True)


@dataclass(frozen=True)
class Html:
    """What needs no escaping any more."""

    text: str


def cell(value: object) -> str:
    return value.text if isinstance(value, Html) else escape(value)


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, text: bool = False) -> Html:
    """text: columns are words, not numbers."""
    heads = "".join(f"<th>{cell(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{cell(c)}</td>" for c in row) + "</tr>" for row in rows)
    kind = ' class="text"' if text else ""
    return Html(f'<div class="scroll"><table{kind}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>')


def tiles(values: Iterable[tuple[str, object]]) -> Html:
    """(label, value) in boxes."""
    boxes = (
        f'<div class="tile"><div class="value">{cell(v)}</div><div class="label">{escape(label)}</div></div>'
        for label, v in values
    )
    return Html(f'<div class="tiles">{"".join(boxes)}</div>')


def listing(values: Iterable[tuple[str, object]]) -> Html:
    """(name, value) one below the other."""
    return Html("<dl>" + "".join(f"<dt>{escape(n)}</dt><dd>{cell(v)}</dd>" for n, v in values) + "</dl>")


def bar(taken: float, forecast: float | None, most: float) -> Html:
    """A bar of what was taken, with a mark where it was forecast."""
    scale = max(most, 1.0)
    mark = "" if forecast is None else f'<i style="left:{min(100.0, 100 * forecast / scale):.1f}%"></i>'
    return Html(f'<span class="bar"><span style="width:{min(100.0, 100 * taken / scale):.1f}%"></span>{mark}</span>')


def paragraph(text: object, *, soft: bool = False) -> Html:
    kind = ' class="soft"' if soft else ""
    return Html(f"<p{kind}>{cell(text)}</p>")


def pre(text: str) -> Html:
    return Html(f"<pre>{escape(text)}</pre>")


def folded(summary: str, inner: Html) -> Html:
    return Html(f"<details><summary>{escape(summary)}</summary>{inner.text}</details>")


def picture(data: bytes, kind: str, alt: str) -> Html:
    """A figure within the page. kind: svg+xml or png."""
    return Html(f'<img alt="{escape(alt)}" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">')


BEGINNING = (  # of every page
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>'
)


@dataclass
class Page:
    """title: of the window. parts: what stands in the page, from top to bottom."""

    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, *parts: Html) -> None:
        self.parts += [p.text for p in parts]

    def section(self, title: str, *parts: Html) -> None:
        self.parts.append(f"<section><h2>{escape(title)}</h2>{''.join(p.text for p in parts)}</section>")

    def verdict(self, kind: str, headline: str, *sentences: object) -> None:
        """kind: good, bad or warn."""
        paragraphs = "".join(f"<p>{cell(s)}</p>" for s in sentences)
        self.parts.append(f'<div class="verdict {escape(kind)}"><b>{escape(headline)}</b>{paragraphs}</div>')

    def text(self) -> str:
        head = f"{escape(self.title)}</title><style>{_STYLE}</style>"
        return f"{BEGINNING}{head}</head><body><main>{''.join(self.parts)}</main></body></html>\n"
