"""Measuring the costs of roles and links on this machine."""
