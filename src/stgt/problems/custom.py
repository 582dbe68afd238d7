"""Any JAX-differentiable loss as a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from numbers import Integral
from types import ModuleType
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_count, check_number, quoted
from stgt._internal.hyper import ShortRepr
from stgt._internal.ops import Array
from stgt._internal.registry import register
from stgt.problems.base import SCALE, Problem, as_dense, check_array, scale_of, scaled


@dataclass(frozen=True, eq=False)
class LossModel(ShortRepr):
    """f_i(x) = (1/m_i) Σ_j loss(x, sample_ij), differentiated by JAX; `unravel` turns a flat x into parameters.

    Models are compared by identity, so each has its own compiled programs. Outside values that the loss reads may
    change between two problems that are made with it.
    """

    loss: Callable[[Any, Any], Any]
    unravel: Callable[[Any], Any] | None
    treedef: Any
    shapes: tuple[Any, ...] = field(repr=False)  # of a flat x and of a sample
    computes: str = field(default="", init=False, repr=False)  # see stgt._internal.xla.traced

    def traced(self) -> str:
        """The program of the loss and its gradient, with the current outside values that it reads."""
        from stgt._internal.xla import jax, traced

        with jax.enable_x64(True):
            return traced(jax.value_and_grad(self.loss_of_sample), *self.shapes)

    def check_unchanged(self) -> None:
        """A ValueError if the outside values that the loss reads have changed since the problem was made."""
        if self.traced() != self.computes:
            raise ValueError(
                f"outside values that {getattr(self.loss, '__name__', 'loss')} reads have changed since the problem "
                "was made, and compiled programs would not see it: make the problem again with from_loss(...)."
            )

    def losses(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        return self._run(xp, "loss", data, x)

    def gradients(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        return self._run(xp, "gradient", data, x)

    def component_gradients(self, xp: ModuleType, data: dict[str, Array], x: Array) -> Array:
        return self._run(xp, "components", data, x)

    def sample_gradients(self, xp: ModuleType, data: dict[str, Array], x: Array, index: Array) -> Array:
        at = (xp.arange(len(x))[:, None], index)
        rows = {name: leaf if name == SCALE else leaf[at] for name, leaf in data.items()}
        return self._run(xp, "gradient", rows | {"weight": xp.full(index.shape, 1 / index.shape[1])}, x)

    def loss_of_sample(self, x: Array, sample: Any) -> Array:
        return self.loss(x if self.unravel is None else self.unravel(x), sample)

    def loss_of_node(self, x: Array, data: dict[str, Array]) -> Array:
        from stgt._internal.xla import jax

        sample = jax.tree.unflatten(self.treedef, [data[f"leaf{k}"] for k in range(self.treedef.num_leaves)])
        losses = jax.vmap(lambda one: self.loss_of_sample(x, one))(sample)
        return (losses * data["weight"]).sum()

    def components_of_node(self, x: Array, data: dict[str, Array]) -> Array:
        from stgt._internal.xla import jax

        alone = {name: leaf[:, None] for name, leaf in data.items() if name != "weight"}
        return jax.vmap(lambda one: jax.grad(self.loss_of_node)(x, one | {"weight": 1.0}))(alone)

    def _run(self, xp: ModuleType, what: str, data: dict[str, Array], x: Array) -> Array:
        from stgt._internal.xla import jax

        own = {name: leaf for name, leaf in data.items() if name != SCALE}
        if xp is not np:
            return scaled(data, _over_nodes(self, what)(x, own))
        with jax.enable_x64(True):
            return scaled(data, np.asarray(_compiled(self, what)(x, own)))


def _over_nodes(model: LossModel, what: str) -> Callable[..., Any]:
    from stgt._internal.xla import jax

    gradient = jax.grad(model.loss_of_node)
    return jax.vmap({"loss": model.loss_of_node, "gradient": gradient, "components": model.components_of_node}[what])


@lru_cache(maxsize=64)
def _compiled(model: LossModel, what: str) -> Callable[..., Any]:
    """For the reference engine, which calls the function from NumPy at every step."""
    from stgt._internal.xla import jax

    return jax.jit(_over_nodes(model, what))


@register
def from_loss(
    loss: Callable[[Any, Any], Any],
    data: Any,
    params: Any,
    *,
    batch: int | None = None,
    L: float | None = None,
    mu: float | None = None,
    optimum: Any = None,
    weights: str = "equal",
) -> Problem:
    """A problem from a loss that JAX can differentiate: f_i(x) = (1/m_i) Σ_j loss(x, sample_ij).

    Args:
        loss: `loss(params, sample)` -> scalar, for one sample.
        data: a list with one pytree of arrays per node; the first axis of each array is the sample. Nodes may hold
            different numbers of samples. A sample at two nodes counts twice. Anything but a list is one pytree of
            arrays (n, m, …) for all nodes.
        params: the dimension p, if `loss` takes a flat vector. Otherwise a pytree like the parameters it takes, where
            runs also start unless you give them another `x0`. All its numbers are trained, integers too.
        batch: samples of a minibatch gradient, drawn with replacement; None for exact gradients. Runs with
            `oracle=stgt.oracles.Shuffled(batch)` draw them without replacement.
        L, mu: smoothness and strong convexity constants of the nodes' means, before `weights`, if you know them.
        optimum: x* (p,), if you know it.
        weights: "equal": each node's mean counts 1/n, for any number of samples; "samples": f_i is multiplied by
            n m_i / Σ m, so that (1/n) Σ f_i is the mean over all samples.

    Returns:
        A `Problem` in the flattened parameters. Its `unravel(x)` and `ravel(params)` convert between the two forms.
    """
    from stgt._internal.xla import jax

    if not callable(loss):
        raise InputError("loss", loss, "give a function loss(params, sample) -> scalar.")
    start = unravel = None
    if isinstance(params, Integral):
        p = check_count(params, "params")
    else:
        start, unravel = _flattened(params)
        p = check_count(start.size, "number of parameters in params")
    nodes = data if isinstance(data, list) else _unstack(data)
    if not nodes:
        raise InputError("data", hint=" is empty: give one pytree of arrays for each node.")
    treedef = jax.tree.structure(nodes[0])
    leaves = [_leaves(node, i, treedef) for i, node in enumerate(nodes)]
    counts = np.array([len(node[0]) for node in leaves])
    scale, scale_data, weighing = scale_of(weights, counts)
    packed: dict[str, np.ndarray] = {}
    for k in range(treedef.num_leaves):
        shapes = {node[k].shape[1:] for node in leaves}
        if len(shapes) > 1:
            raise InputError("data", hint=f"array {k} of a sample has shapes {sorted(shapes)}: all nodes must agree.")
        leaf = np.zeros((len(nodes), counts.max(), *shapes.pop()), dtype=np.result_type(*(node[k] for node in leaves)))
        for i, node in enumerate(leaves):
            # Padding repeats a real sample, so the loss never receives an input that its author did not expect.
            leaf[i] = np.concatenate([node[k], np.repeat(node[k][-1:], counts.max() - counts[i], axis=0)])
        packed[f"leaf{k}"] = leaf
    packed["weight"] = np.where(np.arange(counts.max()) < counts[:, None], 1.0 / counts[:, None], 0.0)
    model = _tried(loss, unravel, treedef, p, packed)
    solution = None if optimum is None else check_array(optimum, "optimum", (p,), f"x* of shape (p,) = ({p},)")
    return Problem(
        name=f"from_loss({getattr(loss, '__name__', 'loss')}, n={len(nodes)}, p={p}{weighing})",
        model=model,
        data=packed | scale_data,
        n=len(nodes),
        p=p,
        L=None if L is None else check_number(L, "L", above=0) * float(scale.max()),
        mu=None if mu is None else check_number(mu, "mu", above=0) * float(scale.min()),
        batch=None if batch is None else check_count(batch, "batch"),
        counts=counts,
        solve=None if solution is None else partial(np.copy, solution),
        start=start,
        unravel=unravel,
    )


def _flattened(params: Any) -> tuple[np.ndarray, Callable[[Any], Any]]:
    """A pytree of numbers as one vector, and the function back, which keeps the dtype of its argument."""
    from stgt._internal.xla import jax

    leaves, treedef = jax.tree.flatten(params)
    try:
        arrays = [np.asarray(leaf, dtype=np.float64) for leaf in leaves]
    except (TypeError, ValueError):
        raise InputError("params", hint="give the dimension p, or a pytree of arrays of numbers.") from None
    if not all(np.isfinite(array).all() for array in arrays):
        raise InputError("params", hint=" holds entries that are not finite, and runs start there: give finite ones.")
    shapes = [array.shape for array in arrays]
    cuts = np.cumsum([array.size for array in arrays])[:-1].tolist()

    def unravel(x: Any) -> Any:
        parts = [x[first:last] for first, last in zip([0, *cuts], [*cuts, None], strict=True)]
        return jax.tree.unflatten(treedef, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])

    return np.concatenate([array.ravel() for array in arrays]) if arrays else np.zeros(0), unravel


def _tried(loss: Any, unravel: Any, treedef: Any, p: int, data: dict[str, np.ndarray]) -> LossModel:
    """Traces the loss once, so that a wrong loss is refused now and not in the middle of a run."""
    from stgt._internal.xla import jax

    arrays = [data[f"leaf{k}"] for k in range(treedef.num_leaves)]
    sample = jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype) for leaf in arrays])
    model = LossModel(loss, unravel, treedef, (jax.ShapeDtypeStruct((p,), np.float64), sample))
    try:
        object.__setattr__(model, "computes", model.traced())
        return model
    except Exception as error:
        untraceable = (
            jax.errors.ConcretizationTypeError,
            jax.errors.TracerArrayConversionError,
            jax.errors.TracerIntegerConversionError,
            jax.errors.NonConcreteBooleanIndexError,
        )
        advice = "loss(params, sample) must return a scalar, for one sample"
        if isinstance(error, untraceable):
            advice = "use jax.numpy instead of numpy, no float() or int(), and jnp.where instead of an if"
        hint = f" cannot be differentiated with these params and data ({quoted(error)}): {advice}."
        raise InputError("loss", hint=hint) from error


def _unstack(data: Any) -> list[Any]:
    from stgt._internal.xla import jax

    leaves, treedef = jax.tree.flatten(data)
    shapes = [np.shape(leaf) for leaf in leaves]
    if any(len(shape) < 2 for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        raise InputError(
            "data",
            hint=f" has arrays of shapes {shapes}: give a list with the data of each node, or arrays (n, m, …) with "
            "the same n.",
        )
    if not leaves:
        return []
    return [jax.tree.unflatten(treedef, [np.asarray(leaf)[i] for leaf in leaves]) for i in range(len(leaves[0]))]


def _leaves(node: Any, i: int, treedef: Any) -> list[np.ndarray]:
    from stgt._internal.xla import jax

    if jax.tree.structure(node) != treedef:
        raise InputError(
            ("data", i), hint=" has another structure than data[0]: all nodes must hold the same kind of sample."
        )
    leaves = [np.asarray(as_dense(leaf, ("data", i))) for leaf in jax.tree.leaves(node)]
    if any(leaf.ndim == 0 for leaf in leaves) or len({len(leaf) for leaf in leaves}) != 1:
        raise InputError(("data", i), hint="the first axis of all its arrays must be the samples.")
    if len(leaves[0]) == 0:
        raise InputError(("data", i), hint=" has no samples (an empty partition): each node must hold at least one.")
    for leaf in leaves:
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            raise InputError(("data", i), hint=" holds entries that are not finite: remove or replace them.")
    return leaves
