"""Roles as MPI ranks: channels, the loops of master, slave and collector ranks, recovery."""
