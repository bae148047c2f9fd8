"""swjoin: exact sliding-window joins of two high-rate streams, from one process to an MPI cluster."""

__version__ = "0.1.0"
