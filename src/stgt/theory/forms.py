"""Affine forms: vectors that remember what they are made of.

An algorithm is written with ``+ − · /`` on vectors and knows no array library. Run on forms instead of numbers, its own
code says which affine map it is; nothing is differentiated and nothing is defined twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


class Form:
    """Σ_s K_s s + k at every node: `parts` has K_s by the symbol s, (n, p, p), or (n, 1, 1) or (1, 1, 1) for a multiple
    of the identity; `constant` is k, which broadcasts to (n, p)."""

    __array_ufunc__ = None  # NumPy leaves its operators to this class, and refuses the rest

    def __init__(self, parts: dict[str, Array], constant: Any = 0.0) -> None:
        self.parts, self.constant = parts, constant

    def __add__(self, other: Any) -> Form:
        if not isinstance(other, Form):
            return Form(self.parts, self.constant + _number(other))
        parts = dict(self.parts)
        for name, block in other.parts.items():
            parts[name] = add_blocks(parts[name], block) if name in parts else block
        return Form(parts, self.constant + other.constant)

    def __mul__(self, other: Any) -> Form:
        factor = _number(other)
        return Form({name: _scaled(block, factor) for name, block in self.parts.items()}, self.constant * factor)

    def __truediv__(self, other: Any) -> Form:
        return self * (1.0 / _number(other))

    def __neg__(self) -> Form:
        return self * -1.0

    def __sub__(self, other: Any) -> Form:
        return self + (-other)

    def __rsub__(self, other: Any) -> Form:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def through(self, H: Array) -> Form:
        """H times the form, H (n, p, p) at every node."""
        constant = self.constant
        if np.ndim(constant):
            constant = (H @ np.broadcast_to(constant, H.shape[:2])[:, :, None])[:, :, 0]
        elif constant:
            constant = constant * H.sum(axis=2)
        return Form({name: multiply_blocks(H, block) for name, block in self.parts.items()}, constant)

    def replaced(self, name: str, by: Form) -> Form:
        """The form with another one in the place of a symbol."""
        if name not in self.parts:
            return self
        rest = Form({other: block for other, block in self.parts.items() if other != name}, self.constant)
        block = self.parts[name]
        return rest + (by.through(block) if block.shape[-1] > 1 else by * block[:, :, 0])


def symbol(name: str) -> Form:
    """The symbol itself."""
    return Form({name: np.ones((1, 1, 1))})


def as_form(value: Any) -> Form:
    """A number counts as a constant."""
    return value if isinstance(value, Form) else Form({}, _number(value))


def add_blocks(a: Array, b: Array) -> Array:
    """The sum of two blocks, of which one may be a multiple of the identity."""
    if a.shape[-1] == b.shape[-1]:
        return a + b
    if a.shape[-1] == 1:
        a, b = b, a
    return a + b * np.eye(a.shape[-1])


def multiply_blocks(a: Array, b: Array) -> Array:
    """The product of two blocks."""
    return a * b if 1 in (a.shape[-1], b.shape[-1]) else a @ b


def rows(forms: list[Form], symbols: list[str], n: int, p: int) -> tuple[Array, Array]:
    """The forms below each other as maps of the symbols beside each other, (n, len(forms) p, len(symbols) p), and their
    constants (n, len(forms) p)."""
    maps, constants = np.zeros((n, len(forms), p, len(symbols), p)), np.zeros((n, len(forms), p))
    place = {name: number for number, name in enumerate(symbols)}
    for number, form in enumerate(forms):
        constants[:, number] = form.constant
        for name, block in form.parts.items():
            maps[:, number, :, place[name]] = block if block.shape[-1] == p else block * np.eye(p)
    return maps.reshape(n, len(forms) * p, len(symbols) * p), constants.reshape(n, -1)


def _scaled(block: Array, factor: Any) -> Array:
    return block * (factor[:, :, None] if np.ndim(factor) else factor)


def _number(value: Any) -> Any:
    """A number, or one for each node (n, 1); a TypeError for anything else, above all another form."""
    if isinstance(value, Form):
        raise TypeError("a product of vectors is not linear")
    array = np.asarray(value, dtype=np.float64)
    if array.ndim not in (0, 2):
        raise TypeError(f"an array of shape {array.shape} is neither a number nor one for each node")
    return array if array.ndim else float(array)
