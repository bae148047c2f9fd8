"""Deterministic simulation of a whole run: delays, crashes and moves from a seed, with checks after every step."""
