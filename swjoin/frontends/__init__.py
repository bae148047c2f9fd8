"""Front ends: languages that make a logical plan.

What: a folder per language.
Why: a plan is made by text, by a fluent API or by hand, and all further steps are the same.
Stays out: the plan (`plan`), the evaluation of expressions (`expressions`).
"""
