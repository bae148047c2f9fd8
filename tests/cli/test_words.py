"""Every word of run.sh and every part of `bench`, as one would type it, on inputs that take seconds; each checks its answer.

The words run in a copy of the checkout, with the environment of this one: some write into docs/ and runs/, one removes both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.fuzzing.__main__ import main as fuzz
from tests.support.limits import LONG_S, PROCESS_S
from tests.tools.random_runs import main as chaos
from tests.tools.soak.run import main as soak

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(LONG_S)]
RUN_SH = (ROOT / "run.sh").read_text()
SOAK = "0.1 --rate 2000 --domain 1000 --window 500ms --epoch 100ms --checkpoint 500ms --every 1500ms --most 1 -n 5 --bound 1000"
BENCH = "module growth links kernels"

# What is typed, and what then stands in the output: a regular expression.
OFTEN = {
    "help": r"(?s)main job.*--tiny",
    "swjoin --version": r"^swjoin \d",
    f"bench --tiny --only {BENCH}": r"(?s)every answer checked.*master to a null slave.*slave to collector.*Where a tuple's",
    "fuzz 10 --target wire": r"(?m)^wire: .*10",
    "chaos --simulated 2": r"2 of 2 simulated runs right",
}
SOMETIMES = {
    "bench api --tiny": r"(?s)[1-9]\d* pairs, .*answer right in every turn.*\| swjoin\.join \|",
    "figures": r"docs/reproduction\.md",
    "bench nexmark --tiny": r"(?s)\| q5 \| \d.*geometric mean over DuckDB: \d.*600 windows a row",
    "bench asof --tiny": r"(?s)x polars, \d.* x DuckDB.*\| reference \| \d.*\| small \| \d",
    "bench kinds --tiny": r"\| anti \| [1-9]",
    "bench gateways --tiny": r"(?s)\| 2 \| \d.*nothing held.*\| 2 \| \d.*t_d = 10 ms\n.*\| 2 \| \d",
    "bench bands --tiny": r"(?s)wide: .*answer right.*evaluations/s.*band over equality: \d.*value grid over equality, C",
    "bench bands files --tiny": r"(?s)band:\n.*swjoin: .*answer right.*DuckDB, cells of value: .*right.*wide:\n.*swjoin: ",
    "bench many --tiny": (
        r"(?s)windows: 40 q.* at [\d.]+.*planned in.*memory: 10 q.* x .*constants: 10 q.*limits: 10 q"
        r".*rows: 4 q.* x .*added: .* x .* s "
    ),
    "bench placement graphs --tiny": r"(?s)OpenGov \| ours, bound 1.03 \| [\d.]+ .*ours partitions: abs.*F4",
    "bench placement counting cpu drift --tiny": r"(?s)counting: two joins.*cpu: join, aggregate, policy.*drift: regret [\d.]+",
    "bench rdf --tiny": r"(?s)parse.* x pyoxigraph.*slide.* x DuckDB.*star of three: \d.*many over few \d.*Q10, 10: \d",
    "bench routings --tiny": r"(?s)range over random \| \d.*hot: .*skew over hash \| \d.*contrand.*queue over epochs: \d",
    "bench sinks --tiny": r"\| 2 \| \d",
    "bench stages --tiny": r"(?s)\| 2 \| \d.*\| 4 \| \d.*multiway join \| \d.*star, 2 partners: \d.* MiB; [1-9]",
}
RARELY = {
    "flights": r"(?s)4/5 check.*\nequal\n.*turnaround\.png",
    "main --tiny": r"(?s)3/5 verify.*overview\.png",
    "test tests/core/test_join_semantics.py -q": r"(?s)== mypy\nSuccess.*passed",
    "long --collect-only -q -n 0 tests/core/test_join_semantics.py tests/runtime/test_simulator.py": (
        r"test_simulator(?s:.)*tests that measure"
    ),
    "bench --tiny": r"(?s)every answer checked.*slave to collector.*## Curves",
    "bench small --tiny": r"(?s)first result.*import swjoin.*1,000 rows a side, [1-9].*polars",
    "bench spark --tiny": r"every answer right",
    "bench adaptation --tiny": r"(?s)pause of a state movement.*slowed to a quarter.*sine-shaped.*### Sub-groups"
    r".*### Units in use.*figures:",
    "bench live session --tiny": r"\n\| [1-9]\d* \| [0-9a-f]{16} \|",
    "bench live sweep --tiny": r"\n\| 4,000 \|",
    "bench live delay --tiny": r"\n\| 100 \| \d",
    "bench safety --tiny": r"(?s)every answer checked.*both, as `swjoin run` starts it.*\| 1 s \| 4,000 \|",
    "bench observing --tiny": r"(?s)[1-9]\d* pairs.*CPU of the watchers",
    "bench simulation --tiny": (
        r"(?s)\| 1 slave \|.*\| 3 slaves, real time \|.*mean delay: error"
        r".*\| 4 \| 4 \|.*tuples/s: \d+ gateways and \d+ slaves.*\| 2 \| [\d,]+ \| [\d,]+ \| \d"
    ),
    "bench queries --tiny": r"(?s)merging .*\| q20 \| \d.*bytes of groups and views .*\| standing \| [1-9].*\| gateway \| \d",
    "bench placement network fragments --tiny": r"(?s)network: (not measured|.* x the throughput).*fragments: .*(not m|D2)",
    "bench cqels --tiny": r"(?s)matching, .*simulated: linear .*s a node .*scale better: .*Q10, 1, real: linear [a-z]",
    "bench hosts 11 --tiny": r"(?m)^hosts: not measured|^figure 11, hosts of 1000 Mbit/s: [a-z]+",
    "bench plan --tiny": r"(?s)\| 1 thread, W 2 s \|.*saturation: ",
    "bench peers --tiny --only cpp duckdb spark": r"(?s)C\+\+ plain.*\| right \|.*DuckDB.*\| right \|.*Spark.*\| right \|",
    "bench nexmark --tiny --peers spark --only q2 q8": r"geometric mean of 2 queries with the same rows",
    "figures --measure --tiny adaptive": r"(?s)aggregate.*docs/reproduction\.md",
    "chaos 1": r"1 of 1 real MPI runs right",
    f"soak {SOAK}": r"right: count and digest, ledger, nothing left behind",
    "docs": r"site/index\.html",
}
# Into environments of their own, from the package index.
INSTALLED = {
    f"bench peers --tiny --only {peer}": rf"\| {system}.*\| right \|"
    for peer, system in (("polars", "Polars"), ("flink", "Apache Flink"), ("pathway", "Pathway"), ("bytewax", "Bytewax"))
}
INSTALLED["bench nexmark --tiny --peers flink --only q4 q5 q6 q13"] = (
    r"(?s)mean of 3 queries with the same rows.*flink, q6 is not"
)
INSTALLED["bench nexmark --tiny --peers bytewax pathway --only q2 q5 q6"] = (
    r"(?s)Bytewax.*mean of 2 queries with the same rows.*bytewax, q6 is not.*Pathway.*mean of 2 queries.*pathway, q6 is not"
)
INSTALLED["bench bands flink --tiny"] = r"(?s)Flink [\d.]+, cells.*right.*sorted maps.*right.*SQL.*right"
INSTALLED["bench stages flink --tiny"] = r"(?s)0.01 partners.*MultiJoin: .*right.*2 partners.*in a row: .*answers right"
INSTALLED["bench rdf rspjs --tiny"] = r"rspjs.* x; as many rows in each"
INSTALLED["bench bistream --tiny"] = r"(?s)Q5: .*claims 1-3, .*claims 23-26: holds.*claims 4-6: .*claims 7-14: "
INSTALLED["wheel"] = r"Successfully built swjoin-.*\.whl"
ELSEWHERE = {"clean"}  # a test of its own


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the working tree, with a link to the environment."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def run(words: str, checkout: Path) -> str:
    """Its standard output."""
    command = [checkout / "run.sh", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False, cwd=checkout.parent)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(pytest.param(*item, id=item[0]) for item in OFTEN.items()),
        *(pytest.param(*item, id=item[0], marks=pytest.mark.drawn) for item in SOMETIMES.items()),
        *(pytest.param(*item, id=item[0], marks=pytest.mark.long) for item in RARELY.items()),
    ],
)
def test_a_word_does_what_it_says(words: str, said: str, checkout: Path) -> None:
    if not (ROOT / ".venv" / ".installed").exists():
        pytest.skip("this environment was not made by run.sh")
    assert re.search(said, run(words, checkout)), words


@pytest.mark.long
@pytest.mark.newcomer
@pytest.mark.parametrize(("words", "said"), INSTALLED.items(), ids=INSTALLED)
def test_a_peer_is_installed_and_right(words: str, said: str, checkout: Path) -> None:
    assert re.search(said, run(words, checkout)), words


def test_clean_leaves_what_is_committed(tmp_path: Path) -> None:
    shutil.copy2(ROOT / "run.sh", tmp_path)
    for name in (".venv/bin/python", "runs/main/run.json", "swjoin/__pycache__/x.pyc", "swjoin/x.py", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run([tmp_path / "run.sh", "clean"], check=True, timeout=PROCESS_S)
    left = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"run.sh", "swjoin/x.py", "README.md"}


# ---------------------------------------------------------------- nothing is forgotten


def named(text: str) -> set[str]:
    """Words behind `./run.sh`, with the parts of `bench`, those of `bench live` included."""
    found = set()
    for line in re.findall(r"\./run\.sh((?: \[?[a-z|]+\]?)*)", text):
        words = re.findall(r"[a-z]+", line.replace("[main]", "main"))
        if not words:
            continue
        depth = 1 if words[0] != "bench" else 3 if words[1:2] == ["live"] else 2
        found.add(" ".join(words[:depth]))
    return found


def words_tested() -> set[str]:
    lines = [*OFTEN, *SOMETIMES, *RARELY, *INSTALLED, *ELSEWHERE]
    return {word for line in lines for word in named(f"./run.sh {line}")}


def documented() -> set[str]:
    """The words that `./run.sh help` lists, one a line."""
    usage = RUN_SH.split("cat <<'EOF'\n", 1)[1].split("EOF\n", 1)[0]
    found = set()
    for line in usage.splitlines():
        parts = re.match(r"\./run\.sh bench live \[([a-z|]+)\]", line)
        if parts:
            found |= {f"bench live {part}" for part in parts[1].split("|")}
        elif line.startswith("./run.sh"):
            found |= named(line.split("  ")[0])
    return found


def test_every_word_is_listed_and_tested() -> None:
    known = re.findall(r"(?m)^  ([a-z]+)(?: \| [-a-z| ]+)?\)", RUN_SH.split("case $word in", 1)[1])
    parts = re.search(r"\n      ([a-z| ]+)\) shift", RUN_SH)
    assert parts is not None
    assert {word.split()[0] for word in documented()} == set(known)
    assert {word.split()[1] for word in documented() if word.startswith("bench ")} == set(parts[1].split(" | "))
    assert words_tested() == documented()


def test_documents_name_words_that_exist() -> None:
    for path in (ROOT / "README.md", ROOT / "benchmarks" / "RESULTS.md", *(ROOT / "docs").rglob("*.md")):
        wrong = {word for word in named(path.read_text()) if word not in documented() | {"bench live"}}
        assert not wrong, f"{path.name}: {wrong}"


def test_a_part_that_does_not_exist_is_refused() -> None:
    done = subprocess.run([ROOT / "run.sh", "bench", "speed"], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "run.sh: unknown part speed of bench; ./run.sh help lists them"


REFUSED = {
    "main --nonsense": "unexpected word --nonsense behind main; ./run.sh help lists what it takes",
    "main --tiny --tiny": "unexpected word --tiny behind main; ./run.sh help lists what it takes",
    "flights --nonsense": "unexpected word --nonsense behind flights; ./run.sh help lists what it takes",
    "flights extra": "unexpected word extra behind flights; ./run.sh help lists what it takes",
    "figures nonsense": "unexpected word nonsense behind figures; ./run.sh help lists what it takes",
    "figures --measure nonsense": "unknown experiment nonsense; experiments/ has them by name",
    "figures --measure --tiny fig05 ../main": "unexpected word ../main behind figures; ./run.sh help lists what it takes",
    "figures --measure --nonsense": "unexpected word --nonsense behind figures; ./run.sh help lists what it takes",
    "docs extra": "unexpected word extra behind docs; ./run.sh help lists what it takes",
    "help extra": "unexpected word extra behind help; ./run.sh help lists what it takes",
    "clean extra": "unexpected word extra behind clean; ./run.sh help lists what it takes",
    "nonsense": "unknown word nonsense; ./run.sh help lists them",
}
REFUSED_BY_PYTHON = {
    "soak nan": "MINUTES must be a number above 0",
    "soak inf": "MINUTES must be a number above 0",
    "soak 0": "MINUTES must be a number above 0",
    "soak 1 --rate nan": "--rate must be a number above 0",
    "soak 1 --share -1": "--share must be a number above 0",
    "soak 1 --domain 0": "--domain must be at least 1",
    "soak 1 --window nonsense": "nonsense",
    "soak 1 --every 0s": "--every 0s: must be above 0",
    "soak --nonsense": "unknown option --nonsense",
    "soak 1 2": "unexpected word 2",
    "chaos": "the following arguments are required: N",
    "chaos many": "argument N: invalid int value: 'many'",
    "chaos 0": "N must be at least 1",
    "chaos 1 --seed -1": "--seed at least 0",
    "chaos --simulate 1": "unknown option --simulate; did you mean --simulated?",
    "fuzz 0": "N and --workers must be at least 1",
    "fuzz 1 --target nothing": "argument --target: invalid choice: 'nothing'",
    "fuzz 1 --limit nan": "--limit must be a time above 0",
    "fuzz --nonsense": "unknown option --nonsense",
}


@pytest.mark.parametrize(("words", "said"), REFUSED.items(), ids=REFUSED)
def test_words_that_mean_nothing_are_refused(words: str, said: str, tmp_path: Path) -> None:
    """Before an environment is made, and before anything is removed."""
    shutil.copy2(ROOT / "run.sh", tmp_path)
    for name in ("runs/main/run.json", "runs/flights/mine", "experiments/fig05.yaml", "experiments/main.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    command = [tmp_path / "run.sh", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"run.sh: {said}\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("words", "said"), REFUSED_BY_PYTHON.items(), ids=REFUSED_BY_PYTHON)
def test_so_are_those_of_words_in_python(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "soak").mkdir(parents=True)
    (tmp_path / "runs" / "soak" / "soak.json").write_text("an older soak")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    word, *argv = words.split()
    try:
        code = {"soak": soak, "chaos": chaos, "fuzz": fuzz}[word](argv)
    except SystemExit as stop:
        code = stop.code
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"run\.sh: .*{re.escape(said)}.*\n", err), err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "runs" / "soak" / "soak.json").read_text() == "an older soak"
