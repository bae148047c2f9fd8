#!/usr/bin/env bash
#SBATCH --job-name=swjoin
#SBATCH --ntasks=10
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
# sbatch mpi_configs/slurm.sh CONFIG.yaml OUT
# The environment's mpi4py must use the same MPI library as srun's plug-in; if not, the first line of output says so and exits with 2.
# With checkpoints in CONFIG.yaml the run stops when the allocation is about to end, and goes on when the job is started again.
set -euo pipefail
config=${1:?CONFIG.yaml}
out=${2:?output directory}
if compgen -G "$out/checkpoints/checkpoint-*.json" >/dev/null; then
  srun --mpi=pmix python -m swjoin run --resume "$out"
else
  srun --mpi=pmix python -m swjoin run "$config" --out "$out"
fi
if grep -q '"resumable": true' "$out/run.json"; then scontrol requeue "$SLURM_JOB_ID"; fi
