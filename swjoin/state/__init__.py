"""Window state over arrays: blocks, extendible hashing, payload, and the kernels that join.

Stays out: protocols and time.
"""
