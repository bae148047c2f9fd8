"""Test tools behind words of run.sh: random runs, kills of real ranks, soaks, and the oracle by brute force."""
