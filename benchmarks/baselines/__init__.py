"""Simpler ways to do what swjoin does, which it is measured against. They are wrong, and a test shows it."""
