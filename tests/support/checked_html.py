"""A parser that checks HTML."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checked(HTMLParser):
    """Every tag is closed in order; collects headings, images, text and anything that would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.images: list[str] = []
        self.words: list[str] = []
        self.fetched: list[str] = []
        self.verdict = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            self.images.append(found["src"] or "")
        if "verdict" in (found.get("class") or ""):
            self.verdict = found["class"] or ""
        assert tag != "script"
        assert not any(name.startswith("on") for name in found)
        self.fetched += [v or "" for n, v in attrs if n in ("src", "href") and not (v or "").startswith("data:")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)
