"""The matrix router: every pair of rows meets in one cell, and cells are shared evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import arrange
from swjoin.routing.matrix import MOST_LINES, Matrix
from swjoin.routing.named import named

LINES = st.integers(1, MOST_LINES)
IDS = st.lists(st.integers(0, (1 << 64) - 1), max_size=40)


def _cells_of(matrix: Matrix, port: int, ids: list[int]) -> list[set[int]]:
    """Of each row; a row that is twice in a cell fails."""
    positions, cells = matrix.copies(port, np.array(ids, np.uint64))
    assert (np.diff(positions) >= 0).all()
    found: list[set[int]] = [set() for _ in ids]
    for position, cell in zip(positions.tolist(), cells.tolist(), strict=True):
        assert 0 <= cell < matrix.rows * matrix.columns
        assert cell not in found[position]
        found[position].add(cell)
    return found


@given(LINES, LINES, IDS, IDS)
def test_every_pair_meets_in_one_cell(rows: int, columns: int, left: list[int], right: list[int]) -> None:
    matrix = Matrix(rows, columns)
    of_left, of_right = _cells_of(matrix, LEFT, left), _cells_of(matrix, RIGHT, right)
    assert all(len(cells) == columns for cells in of_left)
    assert all(len(cells) == rows for cells in of_right)
    assert all(len(mine & theirs) == 1 for mine in of_left for theirs in of_right)


@given(st.lists(st.integers(0, 12), max_size=60))
def test_tuples_lie_by_the_partition_groups_that_are_told(groups: list[int]) -> None:
    key, ids = np.zeros(len(groups), np.int64), np.arange(len(groups), dtype=np.uint64)
    arranged = arrange(TupleBatch(key, key, ids, key), np.arange(13), 13, groups=np.array(groups, np.int64))
    assert np.repeat(np.arange(13), arranged.counts).tolist() == sorted(groups)
    assert [groups[int(i)] for i in arranged.batch.id] == sorted(groups)
    assert all(
        one < two for one, two in zip(arranged.batch.id, arranged.batch.id[1:], strict=False) if groups[one] == groups[two]
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8, 16, 20, 40, 60, 64])
def test_all_instances_have_as_many_cells(count: int) -> None:
    matrix = Matrix.of_instances(count)
    groups = max(60, count)
    cells = np.arange(matrix.rows * matrix.columns)
    assert np.bincount(round_robin(groups, count)[cells % groups], minlength=count).tolist() == [1] * count


@given(st.integers(1, 4_096))
def test_the_size_for_instances(count: int) -> None:
    matrix = Matrix.of_instances(count)
    cells = matrix.rows * matrix.columns
    assert 0.7 * count <= cells <= count
    assert matrix.rows <= matrix.columns <= 2 * matrix.rows + 1
    assert Matrix.of_instances(count, one_place=True) == Matrix(min(count, MOST_LINES), 1)


def test_rows_are_shared_evenly() -> None:
    """Ids of files are numbers in order."""
    for first in (0, 1 << 40):
        _, cells = Matrix(4, 5).copies(LEFT, np.arange(first, first + 100_000, dtype=np.uint64))
        counts = np.bincount(cells, minlength=20)
        assert counts.min() > 0.97 * counts.mean()


@pytest.mark.parametrize(
    ("text", "matrix"),
    [
        ("matrix:2,3", Matrix(2, 3)),
        ("matrix:64,1", Matrix(64, 1)),
        *(
            (text, None)
            for text in (
                "matrix:0,3",
                "matrix:65,1",
                "matrix:2",
                "matrix: 2,3",
                "matrix:-1,2",
                "matrix:02,3",
                "matrix:٣,2",
                "hash",
                "",
            )
        ),
        ("matrix:" + "9" * 5000 + ",1", None),
        (5, None),
    ],
)
def test_names(text: object, matrix: Matrix | None) -> None:
    assert named(text) == matrix
