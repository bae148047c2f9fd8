"""Plans of several stages: logical plans, watermark rules, stages and the edges between them.

Stays out: who plays a stage, and how tuples travel.
"""
