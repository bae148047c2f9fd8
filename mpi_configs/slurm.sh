#!/usr/bin/env bash
#SBATCH --job-name=swjoin
#SBATCH --ntasks=10
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
# sbatch mpi_configs/slurm.sh CONFIG.yaml OUT
# Two minutes before the end of the allocation Slurm sends this script USR1. It passes it on to the ranks, which make a checkpoint
# and end; then the job is queued again, and goes on from there. Without checkpoints in CONFIG.yaml it just reaches its limit.
#   SWJOIN_LAUNCHER  srun (default; a rank that dies ends the run) or mpirun (Open MPI 5: the others go on without it)
#   SWJOIN_MPI       srun's plug-in for the MPI library (default pmix; `srun --mpi=list` shows what there is)
#   SWJOIN_PYTHON    the environment's python (default: the one on PATH)
set -euo pipefail
config=${1:?CONFIG.yaml}
out=${2:?output directory}
python=${SWJOIN_PYTHON:-python}

says() { grep -q "\"$1\": true" "$out/run.json" 2>/dev/null; }

newest() { compgen -G "$out/checkpoints/checkpoint-*.json" | sort | tail -n 1 || true; }

# Slurm may start a job again whose end it has not seen.
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && says complete; then exit 0; fi

run=(-m swjoin run "$config" --out "$out")
before=$(newest)
if [ -n "$before" ]; then run=(-m swjoin run --resume "$out"); fi
case ${SWJOIN_LAUNCHER:-srun} in
  srun) command=(srun --mpi="${SWJOIN_MPI:-pmix}" "$python" "${run[@]}") ;;
  mpirun) command=("$python" "${run[@]}" -n "$SLURM_NTASKS") ;;
  *) echo "slurm.sh: SWJOIN_LAUNCHER is srun or mpirun, not $SWJOIN_LAUNCHER" >&2; exit 2 ;;
esac

ending=no
interrupted=no
pid=
stop() {
  ending=yes
  interrupted=yes
  if [ -n "$pid" ]; then kill -USR1 "$pid" 2>/dev/null || true; fi
}
trap stop USR1
set -m  # a process group of its own: Slurm signals that of this script, and the run must hear of it once
"${command[@]}" &
pid=$!
set +m
while :; do  # a signal ends `wait`, not the run
  interrupted=no
  code=0
  wait "$pid" || code=$?
  if [ $interrupted = no ]; then break; fi
done

if [ "$ending" = yes ] && says resumable; then
  if [ "$(newest)" = "$before" ]; then
    echo "slurm.sh: no checkpoint was made in this allocation, which may be too short; not queued again" >&2
    exit 1
  fi
  echo "slurm.sh: stopped with a checkpoint; queued again"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
