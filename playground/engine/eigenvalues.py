"""The eigenvalues of a small real matrix: Hessenberg form by eliminations, then Francis' double-shifted QR steps.

Reference: Golub and Van Loan, Matrix Computations, sections 7.4 and 7.5.
"""

from __future__ import annotations

from cmath import sqrt

EPSILON = 2.0**-52
MOST_STEPS = 60  # QR steps for one eigenvalue


def eigenvalues(matrix: list[list[float]]) -> list[complex]:
    """All eigenvalues of a square matrix, in no order."""
    H = hessenberg([list(row) for row in matrix])
    found: list[complex] = []
    last, steps = len(H) - 1, 0
    scale = max((abs(value) for row in H for value in row), default=0.0)
    while last >= 0:
        first = _start(H, last, scale)
        if last - first < 2:
            found += _last(H, first, last)
            last, steps = first - 1, 0
            continue
        steps += 1
        if steps > MOST_STEPS:
            raise ArithmeticError("the QR steps did not converge")
        _francis(H, first, last, unusual=steps % 10 == 0)
    return found


def hessenberg(H: list[list[float]]) -> list[list[float]]:
    """Zeros below the first subdiagonal, by similarity transformations with pivots, in place."""
    n = len(H)
    for k in range(1, n - 1):
        pivot = max(range(k, n), key=lambda i: abs(H[i][k - 1]))
        if H[pivot][k - 1] == 0.0:
            continue
        H[k], H[pivot] = H[pivot], H[k]
        for row in H:
            row[k], row[pivot] = row[pivot], row[k]
        top = H[k]
        for i in range(k + 1, n):
            row = H[i]
            factor = row[k - 1] / top[k - 1]
            if factor:
                row[k - 1] = 0.0
                row[k:] = [a - factor * b for a, b in zip(row[k:], top[k:], strict=True)]
                for other in H:
                    other[k] += factor * other[i]
    return H


def _start(H: list[list[float]], last: int, scale: float) -> int:
    """The first row of the block that ends at `last`: above it the subdiagonal is 0, to rounding."""
    for i in range(last, 0, -1):
        size = abs(H[i][i]) + abs(H[i - 1][i - 1]) or scale
        if abs(H[i][i - 1]) <= EPSILON * size:
            H[i][i - 1] = 0.0
            return i
    return 0


def _last(H: list[list[float]], first: int, last: int) -> list[complex]:
    """The eigenvalues of a block of one or two rows."""
    if first == last:
        return [complex(H[last][last])]
    a, b, c, d = H[first][first], H[first][last], H[last][first], H[last][last]
    middle, half = (a + d) / 2, (a - d) / 2
    root = sqrt(half * half + b * c)
    if root.imag:
        return [middle + root, middle - root]
    # The larger one first, without cancellation; the smaller one from the determinant.
    large = middle + (root.real if middle >= 0 else -root.real)
    return [complex(large), complex((a * d - b * c) / large if large else 0.0)]


def _francis(H: list[list[float]], first: int, last: int, unusual: bool) -> None:
    """A double-shifted QR step on rows first … last, with shifts from the last two rows; `unusual` ones end cycles."""
    a, d, corner = H[last - 1][last - 1], H[last][last], H[last - 1][last] * H[last][last - 1]
    if unusual:
        size = abs(H[last][last - 1]) + abs(H[last - 1][last - 2])
        a, d, corner = d + 0.75 * size, d + 0.75 * size, -0.4375 * size * size
    start, v = _bulge(H, first, last, a, d, corner)
    for k in range(start, last):
        rows = range(k, min(k + 3, last + 1))
        if k > start:
            v = [H[i][k - 1] for i in rows]
        norm = sum(value * value for value in v) ** 0.5
        if norm:
            v[0] += norm if v[0] >= 0 else -norm
            _reflect(H, rows, v, max(k - 1, first), first, last)
            for i in rows[1:] if k > first else ():
                H[i][k - 1] = 0.0


def _bulge(H: list[list[float]], first: int, last: int, a: float, d: float, corner: float) -> tuple[int, list[float]]:
    """Where a step begins, and the first column there of (H − σ₁)(H − σ₂), up to a factor.

    σ₁ and σ₂ are the eigenvalues of a block with diagonal a, d, and `corner` the product of its other entries. The step
    begins below two small subdiagonal entries, if there are such: above them the shifts would be lost in rounding.
    """
    m = last - 2
    while True:
        h, under = H[m][m], H[m + 1][m]
        x = ((a - h) * (d - h) - corner) / under + H[m][m + 1]
        y, z = H[m + 1][m + 1] + h - a - d, H[m + 2][m + 1]
        size = abs(x) + abs(y) + abs(z)
        x, y, z = (x / size, y / size, z / size) if size else (1.0, 0.0, 0.0)
        around = abs(H[m - 1][m - 1]) + abs(h) + abs(H[m + 1][m + 1])
        if m == first or abs(H[m][m - 1]) * (abs(y) + abs(z)) <= EPSILON * abs(x) * around:
            return m, [x, y, z]
        m -= 1


def _reflect(H: list[list[float]], rows: range, v: list[float], left: int, first: int, last: int) -> None:
    """H ← P H P with P = I − 2 v vᵀ/vᵀv on these rows and columns; only the block first … last is kept up to date."""
    factor = 2.0 / sum(value * value for value in v)
    end = last + 1
    parts = [H[i][left:end] for i in rows]
    sums = [factor * sum(w * value for w, value in zip(v, column, strict=True)) for column in zip(*parts, strict=True)]
    for i, w, part in zip(rows, v, parts, strict=True):
        H[i][left:end] = [value - w * s for value, s in zip(part, sums, strict=True)]
    for row in H[first : min(rows[-1] + 2, end)]:
        s = factor * sum(w * row[j] for w, j in zip(v, rows, strict=True))
        for w, j in zip(v, rows, strict=True):
            row[j] -= w * s
