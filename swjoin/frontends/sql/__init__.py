"""SQL: the text of a query becomes a logical plan.

What: `planner.plan_query`.
Why: most people who need a join of streams need it inside a query.
Stays out: running it (`cli.query`).
"""
