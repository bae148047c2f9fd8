"""The documents are true: worked examples are run, named files exist, commands are known."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.project.test_layout import FLOORS

SEMANTICS = (ROOT / "docs" / "semantics.md").read_text()
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "mpi_configs").glob("*.md")),
]


def _block(text: str) -> str:
    """The first indented block of a text, without the indent."""
    match = re.search(r"\n\n((?:    .*\n)+)", text)
    return "" if match is None else re.sub(r"(?m)^    ", "", match[1])


def examples() -> list[tuple[str, str, str, str]]:
    """(left.csv, right.csv, options, expected lines) of every worked example."""
    found = []
    left = right = ""
    for part in re.split(r"(?m)^(?=left\.csv$|right\.csv$|options: )", SEMANTICS):
        if part.startswith("left.csv"):
            left = _block(part)
        elif part.startswith("right.csv"):
            right = _block(part)
        elif part.startswith("options: "):
            options = part.split("`")[1]
            found.append((left, right, options, _block(part)))
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda e: e[2])
def test_worked_examples(example: tuple[str, str, str, str], swjoin: Any, tmp_path: Path) -> None:
    left, right, options, expected = example
    (tmp_path / "left.csv").write_text(left)
    (tmp_path / "right.csv").write_text(right)
    unit = [] if "-" in left else ["--time-unit", "s"]
    key = ["--on", "key"] if "key" in left.splitlines()[0].split(",") else []
    argv = [*key, "--left-time", "time", "--right-time", "time", *unit, *shlex.split(options)]
    done = swjoin("join", tmp_path / "left.csv", tmp_path / "right.csv", *argv, "-o", tmp_path / "out.parquet")
    assert done.code == 0, done.err
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    times = [(r["left_time"] if "left_time" in r else r["time"], r.get("right_time")) for r in rows]
    found = sorted(
        ", ".join(f"{side} time {t}" for side, t in zip(("left", "right"), pair, strict=False) if t is not None)
        for pair in times
    )
    assert found == sorted(expected.splitlines())


def test_there_are_examples_of_every_kind() -> None:
    assert len(examples()) >= 11


def test_the_digest_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", SEMANTICS, re.DOTALL)
    assert code is not None
    exec(code[1], {"np": np})
    said = re.search(r"# ([0-9a-f]{16})", code[1])
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


@pytest.mark.mpi
def test_the_examples_of_the_api_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in one namespace, as a reader would type them; what a line prints stands behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for ranks
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    assert len(blocks) >= 7
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(block, namespace)
    said = re.findall(r"(?m)^ *print\(.*\)  # (.*)$", "".join(blocks))
    assert capsys.readouterr().out.splitlines() == said


def test_the_examples_of_the_questions_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    """In order, in one namespace."""
    text = (ROOT / "docs" / "faq.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    assert len(blocks) == text.count("```") / 2
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(block, namespace)
    assert capsys.readouterr().out.splitlines() == re.findall(r"(?m)^ *print\(.*\)  # (.*)$", "".join(blocks))


MIGRATIONS = re.findall(
    r"(?ms)^## ([\w -]+)$(?:(?!^## ).)*?^```python\n(.*?)^```$", (ROOT / "docs" / "migration.md").read_text()
)


@pytest.mark.parametrize(("tool", "code"), MIGRATIONS, ids=[tool for tool, _ in MIGRATIONS])
def test_examples_of_other_tools_have_the_same_answer(tool: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each compares both answers itself; without the other tool it is skipped."""
    for other in re.findall(r"(?m)^import (\w+)", code):
        pytest.importorskip(other)
    assert "assert" in code
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"(?m)^print\(.*\)  # (.*)$", code)


def test_every_example_of_other_tools_is_run() -> None:
    text = (ROOT / "docs" / "migration.md").read_text()
    assert [tool for tool, _ in MIGRATIONS] == ["pandas", "polars", "DuckDB", "As-of joins"]
    assert text.count("```python") == len(MIGRATIONS)


@pytest.fixture
def trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the first examples, in the working directory: one pair matches."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "payments.csv").write_text("user_id,paid_at\n7,2024-01-01 01:00:00\n7,2024-01-01 03:00:00\n")
    rows = {"user_id": [7, 8], "started": [np.datetime64("2024-01-01T00:00:00", "us")] * 2}
    pq.write_table(pa.table(rows), tmp_path / "trips.parquet")
    return tmp_path


def test_the_lines_of_python_in_the_readme(trips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    exec(code[1], {})
    assert capsys.readouterr().out == "1 True\n"


@pytest.mark.parametrize("name", ["README.md", "docs/joining-files.md", "docs/index.md", "docs/migration.md"])
def test_the_first_join_on_the_command_line(name: str, trips: Path, swjoin: Any) -> None:
    text = (ROOT / name).read_text().replace("\\\n", "")
    commands = re.findall(r"(?m)^    swjoin (join .*)$", text)
    assert commands
    for command in commands:
        done = swjoin(*shlex.split(command))
        assert done.code == 0, done.err
        assert pq.read_table(trips / "pairs.parquet").num_rows == 1


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_exist(path: Path) -> None:
    text = path.read_text()
    for link, anchor in re.findall(r"\]\((?!https:)([^)#]*)(?:#([^)]+))?\)", text):
        target = path.parent / link if link else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", target.read_text())
            assert anchor in {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}, (
                anchor
            )
    for name in re.findall(r"`((?:swjoin|plots|tests|docs|mpi_configs|benchmarks)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name
    if path.name in ("CHANGELOG.md", "tutorial.md", "tutorial-cluster.md"):
        return  # of files as they were, and of the reader's own
    known = {file.name for room in ("swjoin", "tests", "plots", "benchmarks", "docs") for file in (ROOT / room).rglob("*.py")}
    for name in re.findall(r"`(?:[\w.]+/)*(\w+\.py)`", text):
        assert name in known, name


def _script(name: str) -> Any:
    """A script that writes pages, as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_page", ROOT / "docs" / "mkdocs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    return page


def test_every_module_is_on_the_map() -> None:
    """docs/modules.md is what the docstrings say, and links every module."""
    page = _script("modules")
    text = (ROOT / "docs" / "modules.md").read_text()
    assert text == page.modules(), "write it anew: python docs/mkdocs/modules.py"
    for found in (ROOT / "swjoin").rglob("*.py"):
        assert found.name in ("__init__.py", "__main__.py") or f"](../{found.relative_to(ROOT)})" in text, found


def test_the_map_has_the_floors_of_the_layout_test() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Nine floors")[1].split("\n## ")[0]
    named = re.findall(r"(?m)^(\d)\. ((?:`\w+`(?:, )?)+):", text)
    assert [int(number) for number, _ in named] == list(range(1, len(FLOORS) + 1))
    assert [set(re.findall(r"\w+", rooms)) for _, rooms in named] == [set(rooms) for rooms in FLOORS]


def test_the_landing_page_links_every_page() -> None:
    docs = ROOT / "docs"
    linked = {(docs / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", (docs / "index.md").read_text())}
    assert set(docs.rglob("*.md")) - {docs / "index.md", docs / "reproduction" / "notes.md"} <= linked


WRAPPED = [
    path
    for path in DOCUMENTS
    if path.name not in ("CHANGELOG.md", "modules.md", "reproduction.md", "notes.md")  # generated, or parts of generated pages
]


def wide_lines(text: str, width: int = 120) -> list[str]:
    """Lines of prose that are wider: no code, no tables, nothing that is one link or one code span."""
    text = re.sub(r"(?ms)^( *)```.*?^\1```$", "", text)
    found = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    "):
            continue
        lines = [line for line in block.split("\n") if len(line) > width and not line.lstrip().startswith("|")]
        found += [line for line in lines if " " in re.sub(r"!?\[[^\]]*\]\([^)]*\)|`[^`]*`", "x", line.strip()).lstrip("-* ")]
    return found


@pytest.mark.parametrize("path", WRAPPED, ids=lambda p: str(p.relative_to(ROOT)))
def test_prose_is_wrapped(path: Path) -> None:
    assert wide_lines(path.read_text()) == []


def test_what_counts_as_wide() -> None:
    long = "word " * 25
    assert wide_lines(f"a\n\n{long}\n") == [long]
    assert wide_lines(f"- a\n  {long}\n") == [f"  {long}"]
    assert wide_lines(f"```sh\n{long}\n```\n\n    {long}\n\n| {long} |\n\n- [{long}](a.md)\n") == []


def test_titles_are_noun_phrases() -> None:
    """As far as a test can tell: no sentences, no clauses; decisions carry the number of their file."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reproduction"]
    titles = {page: page.read_text().split("\n", 1)[0] for page in pages}
    for page, title in titles.items():
        assert title.startswith("# "), page
        assert not re.search(r"(?i)[.?!]$|\b(is|are|was|has|have|what|who|how|when|nobody|everybody)\b", title), (
            f"{page.name}: {title}"
        )
        if page.parent.name == "decisions":
            assert title.startswith(f"# {page.name[:3]}: "), page
    index = (ROOT / "docs" / "index.md").read_text()
    for link, said in re.findall(r"\| \[\d+\]\((decisions/[\w.-]+)\) \| (.*) \|", index):
        assert titles[ROOT / "docs" / link] == f"# {link[10:13]}: {said}"


def test_the_map_is_short_and_links_every_mechanism() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert len(text.splitlines()) <= 250
    pages = {p.name for p in (ROOT / "docs" / "mechanisms").glob("*.md")}
    assert set(re.findall(r"\]\(mechanisms/([\w-]+\.md)\)", text)) == pages


@pytest.mark.parametrize("name", ["master-phases.md", "state-movement.md"])
def test_diagrams_of_states_are_those_of_the_code(name: str) -> None:
    page = _script("transitions")
    assert set(page.PAGES) == {"master-phases.md", "state-movement.md"}
    text = (ROOT / "docs" / "mechanisms" / name).read_text()
    assert text == page.written(name), "write it anew: python docs/mkdocs/transitions.py"
    for (before, after), when in page.PAGES[name].items():
        assert f"| {before} | {after} | {when} |" in text


def test_commands_in_documents_are_known() -> None:
    from swjoin.cli.main import build_parser

    parser = build_parser()
    known = set(next(a for a in parser._actions if a.dest == "command").choices or {})
    script = (ROOT / "run.sh").read_text()
    for path in DOCUMENTS:
        text = path.read_text()
        words = set(re.findall(r"(?m)^(?:    |\$ )(?:\./run\.sh )?swjoin (\w+)", text))
        assert words <= known, path
        assert words or path != ROOT / "README.md"
        for word in set(re.findall(r"(?m)^(?:    |\$ )\./run\.sh (\w+)", text)):
            assert re.search(rf"(?m)^  (?:\w+ \| )*{word}(?: \| [\w-]+)*\)", script), f"{path.name}: {word}"


def test_contributing_has_every_marker() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    declared = {line.split(":")[0] for line in setup["tool:pytest"]["markers"].splitlines() if line}
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text())) == declared
