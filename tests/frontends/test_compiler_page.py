"""The page "From SQL to ranks": its query has the stages and edges that it shows, and its columns travel as it says."""

from __future__ import annotations

import re

from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.plan.columns import columns_of
from swjoin.plan.stages import cut, describe_edge, describe_stage
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "from-sql-to-ranks.md").read_text()
TABLES = {
    "trips": Table((("user", "int64"), ("started", "timestamp[us]"), ("km", "double"), ("city", "string")), "started"),
    "payments": Table((("user", "int64"), ("paid", "timestamp[us]"), ("eur", "double"), ("method", "string")), "paid"),
}


def test_the_stages_of_the_page() -> None:
    (text,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    plan = plan_query(text, TABLES).plan
    stages = cut(plan)
    assert [*map(describe_stage, stages.stages), *map(describe_edge, stages.edges)] == shown.splitlines()
    columns = columns_of(plan, stages, rows=True)
    assert set(columns.read["trips"]) == {"user", "km", "city"}
    assert columns.travels[stages.edges[0].id] == ("t.city",)
