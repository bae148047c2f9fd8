"""Soaks: a long run with kills, moves and resizes (`./run.sh soak`)."""
