#!/usr/bin/env bash
#SBATCH --job-name=swjoin
#SBATCH --ntasks=10
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
# sbatch mpi_configs/slurm.sh CONFIG.yaml OUT
# The environment's mpi4py must use the same MPI library as srun's plug-in; if not, the first line of output says so and exits with 2.
set -euo pipefail
config=${1:?CONFIG.yaml}
out=${2:?output directory}
srun --mpi=pmix python -m swjoin run "$config" --out "$out"
