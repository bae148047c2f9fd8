"""Checks of the machine and of its hosts: `swjoin doctor`, memory of a rank at start-up."""
