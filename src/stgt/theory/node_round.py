"""A round on a quadratic as linear maps: p × p blocks for each node, and W_r between the nodes.

Node i has the gradient H_i x − h_i + ξ with Cov ξ = C_i, or that of a minibatch. Its local steps
x ← x − γ(g + correction) are powers of one matrix, computed by doubling in log τ products. The rest of the round is the
algorithm's own code, run on affine forms (`Form`) instead of numbers. This code consists of ``+ − · /`` on vectors, so
it returns its own affine map. Nothing is differentiated, and no method is defined twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stgt._internal.checks import NotCovered
from stgt.algorithms import Algorithm, Local, RoundSpec
from stgt.algorithms.calls import Checked, at_stepsize
from stgt.simulator.instance import Instance
from stgt.theory.sample_noise import AFFINE, Additive, Noise, OfSamples, SampleNoise, sample_noise

Array = np.ndarray
AHEAD = "gradient ahead"  # the gradient at x that a method with two exchanges has from the round before
ROOM = 2**28  # the most numbers in the blocks of a round: 2 GB


class NotFiniteError(ValueError):
    """A round overflows."""


@dataclass(frozen=True, eq=False)
class Curvature:
    """∇f_i(x) = H_i x − h_i with noise of covariance C_i: (n, p, p), (n, p), (n, p, p). With `samples`, gradients are
    those of minibatches, and C is 0."""

    H: Array
    h: Array
    C: Array
    samples: SampleNoise | None = None

    def noise_at(self, x: Array) -> Array:
        """The covariance of every node's gradient at its x (n, p), (n, p, p)."""
        if self.samples is None:
            return self.C
        known = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        return self.samples.covariance(known[:, :, None] * known[:, None])


@dataclass(frozen=True, eq=False)
class MessageMap:
    """The message of the nodes as a linear map of their inputs: state, noise, and what they received in this round.

    Attributes:
        F: (n, m p, w), the m fields of the message as a map of the w inputs.
        constant: (n, m p).
        transposed: for each field, is it mixed by W_rᵀ?
        pushed: for each field, is it mixed by a separate matrix C_r?
    """

    F: Array
    constant: Array
    transposed: tuple[bool, ...]
    pushed: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class NodeRound:
    """A round: v_i ← G_i (v, ξ, received)_i + g_i, with the messages of the exchanges mixed by W_r.

    Attributes:
        fields: the names of a node's variables, in the order of v (n, k p).
        messages: one, two, or none in a round without communication.
        G: (n, k p, w).
        constant: (n, k p).
        noise: the noises by name, (n, p) each, which follow the state among the inputs.
    """

    fields: tuple[str, ...]
    messages: tuple[MessageMap, ...]
    G: Array
    constant: Array
    noise: dict[str, Noise]

    @property
    def size(self) -> int:
        """The entries of a node's state, k p."""
        return self.G.shape[1]

    @property
    def inputs(self) -> int:
        """The entries of a node's state and noise, which precede what it receives among the inputs."""
        return self.size + len(self.noise) * (self.size // len(self.fields))

    @property
    def sampled(self) -> bool:
        """Does the noise depend on the state, as minibatch noise does?"""
        return any(isinstance(one, OfSamples) for one in self.noise.values())

    def spread(self, M: Array) -> Array:
        """The covariance of all noises of a node, (n, q p, q p), from the second moments M of every node's (state, 1),
        (n, k p + 1, k p + 1); linear in M."""
        n, width, found, place = len(self.G), self.inputs - self.size, dict[str, Array](), 0
        whole = np.zeros((n, width, width))
        for name, noise in self.noise.items():
            found[name] = noise.covariance(M, found)
            end = place + found[name].shape[1]
            whole[:, place:end, place:end] = found[name]
            place = end
        return whole

    @cached_property
    def noise_root(self) -> Array:
        """(n, q p, q p): a square root of the covariance of a node's additive noises, by eigenvalues."""
        assert not self.sampled
        here = np.zeros((len(self.G), self.size + 1, self.size + 1))
        here[:, -1, -1] = 1.0
        values, vectors = np.linalg.eigh(self.spread(here))
        return vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]


def curvature(instance: Instance) -> Curvature:
    """H, h and the noise of a problem, from its gradients; NotCovered if these are not affine, or too large."""
    problem = instance.problem
    n, p = problem.n, problem.p
    if n * p * p > ROOM // 4:
        raise NotCovered(f"{problem.name} has {n} Hessians of {p} × {p}: give a smaller n or p.")
    h = -problem.gradients(np.zeros(p))
    H = np.stack([problem.gradients(one) + h for one in np.eye(p)], axis=2)
    test = np.cos(1.0 + np.arange(n * p)).reshape(n, p)
    there, expected = problem.gradients(test), (H @ test[:, :, None])[:, :, 0] - h
    if not np.allclose(there, expected, rtol=AFFINE, atol=AFFINE * max(1.0, float(np.abs(there).max()))):
        raise NotCovered(f"{problem.name} is not quadratic: the round is an affine map on quadratics only.")
    samples = None if problem.batch is None else sample_noise(problem)
    return Curvature((H + H.transpose(0, 2, 1)) / 2, h, problem.covariance, samples)


def node_round(instance: Instance, quadratic: Curvature, r: int, *, communicates: bool = True) -> NodeRound:
    """Round r; with `communicates=False` a round that ends without an exchange."""
    algorithm = _with_stepsizes(instance.algorithm)
    fields = fields_of(instance.spec)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            built = _Builder(instance, algorithm, quadratic, fields).round(r, communicates)
    except TypeError as error:
        raise NotCovered(
            f"{algorithm.label} uses more than + − · / on vectors ({error}), so its round has no exact map: "
            "write it with these, or simulate it."
        ) from error
    if not all(np.isfinite(array).all() for array in (built.G, built.constant, *(one.F for one in built.messages))):
        raise NotFiniteError(
            f"{algorithm.label} with gamma={instance.algorithm.gamma} overflows within a round: give a smaller gamma."
        )
    return built


def first_state(instance: Instance, quadratic: Curvature, x0: Array) -> tuple[Array, Array, Array]:
    """v before round 0, (n, k p), and its noise: A (n, k p, q p) multiplies a node's own noise and B (n, k p, q p) the
    mean of all nodes' noise; each noise has covariance C."""
    algorithm = _with_stepsizes(instance.algorithm)
    fields = fields_of(instance.spec)
    n, p = x0.shape
    gradient = Form({"noise": np.ones((1, 1, 1))}, (quadratic.H @ x0[:, :, None])[:, :, 0] - quadratic.h)
    mean = Form({"mean noise": np.ones((1, 1, 1))}, np.broadcast_to(gradient.constant.mean(axis=0), (n, p)))
    start = Form({}, x0)
    state = Checked(algorithm).init(start, *((gradient, mean) if instance.spec.needs_initial_gradient else ()))
    known = {**state, AHEAD: Form({"noise ahead": np.ones((1, 1, 1))}, gradient.constant)}
    symbols = ["noise", "noise ahead", "mean noise"]
    maps, v = rows([as_form(known[name]) for name in fields], symbols, n, p)
    own, shared = maps[:, :, : 2 * p], np.concatenate([maps[:, :, 2 * p :], 0 * maps[:, :, 2 * p :]], axis=2)
    return v, own, shared


def fields_of(spec: RoundSpec) -> tuple[str, ...]:
    """The names of a node's variables, and the gradient ahead if there are two exchanges."""
    return (*spec.state_fields, AHEAD) if spec.second_messages else spec.state_fields


class _Builder:
    """Runs a round on affine forms."""

    def __init__(self, instance: Instance, algorithm: Algorithm, quadratic: Curvature, fields: tuple[str, ...]) -> None:
        self.instance, self.method, self.quadratic, self.fields = instance, Checked(algorithm), quadratic, fields
        self.noise: dict[str, Noise] = {}
        gamma: Any = algorithm.gamma
        self.gamma = gamma
        self.rate: Any = gamma[:, :, None] if np.ndim(gamma) else gamma

    def round(self, r: int, communicates: bool) -> NodeRound:
        method, n, p = self.method, *self.quadratic.h.shape
        state = {name: symbol(name) for name in self.fields}
        local = self.local_steps(state, r)
        kept = method.readable(state)
        inputs, exchanges = list(self.fields), []
        if not communicates:
            new: dict[str, Any] = {**state, "x": local.end}
        else:
            message = method.message(kept, local)
            new = method.merge(kept, local, {name: symbol(f"received {name}") for name in message})
            exchanges.append((message, method.spec.messages))
            if method.spec.second_messages:
                if self.quadratic.samples is not None:
                    raise NotCovered(
                        f"{method.label} takes gradients between two exchanges: the second moments of its "
                        "minibatches are not known; simulate it."
                    )
                gradient = self.gradient(as_form(new["x"]), "noise ahead")
                message = method.second_message(new, gradient)
                received = {name: symbol(f"received again {name}") for name in message}
                new = {**method.second_merge(new, gradient, received), AHEAD: gradient}
                exchanges.append((message, method.spec.second_messages))
        inputs += list(self.noise)
        room = n * p * p * (len(self.fields) + 2) * (len(inputs) + 4)
        if room > ROOM:
            raise NotCovered(f"the blocks of a round have {room:.2g} numbers: give a problem with a smaller n or p.")
        made = []
        for number, (message, declared) in enumerate(exchanges):
            F, constant = rows([as_form(message[sent.name]) for sent in declared], inputs, n, p)
            transposed = tuple(sent.transposed for sent in declared)
            pushed = tuple(sent.pushed and self.instance.topology.has_push for sent in declared)
            made.append(MessageMap(F, constant, transposed, pushed))
            inputs += [f"received {'again ' if number else ''}{sent.name}" for sent in declared]
        G, constant = rows([as_form(new[name]) for name in self.fields], inputs, n, p)
        return NodeRound(self.fields, tuple(made), G, constant, self.noise)

    def gradient(self, x: Form, noise: str) -> Form:
        self.noise[noise] = self.noise_of_steps(x, 1, np.zeros_like(self.quadratic.H), Form({}), self.quadratic.C)
        return x.through(self.quadratic.H) - Form({}, self.quadratic.h) + symbol(noise)

    def noise_of_steps(self, x: Form, steps: int, B: Array, drift: Form, additive: Array) -> Noise:
        """The noise after `steps` steps x ← B x + drift; `additive` is its covariance if it is not that of samples."""
        if self.quadratic.samples is None:
            return Additive(additive)
        n, p = self.quadratic.h.shape
        through = {name: add_blocks(np.zeros((1, p, p)), K) for name, K in x.parts.items() if name in self.noise}
        more, maps = self.known_part(drift), [self.known_part(x)]
        for _ in range(steps - 1):
            maps.append(B @ maps[-1] + more)
        one = np.zeros((steps, n, 1, maps[0].shape[2]))
        one[..., -1] = 1.0
        return OfSamples(self.quadratic.samples, np.concatenate([np.stack(maps), one], axis=2), through, B, self.rate)

    def known_part(self, form: Form) -> Array:
        """A form without its noise, as a map of (state, 1), (n, p, s + 1)."""
        n, p = self.quadratic.h.shape
        known = Form({name: block for name, block in form.parts.items() if name in self.fields}, form.constant)
        maps, constant = rows([known], list(self.fields), n, p)
        return np.concatenate([maps, constant[:, :, None]], axis=2)

    def local_steps(self, state: dict[str, Form], r: int) -> Local:
        """The first step, the steps between, which are one affine map, and the last step."""
        method, tau, start = self.method, self.method.tau, state["x"]
        start_gradient = (
            self.gradient(start, "noise of the start_gradient") if "start_gradient" in method.spec.reads else None
        )
        correction = as_form(method.correction(method.readable(state), symbol("here")))

        def step(x: Form, g: Form) -> Form:
            return x - (g + correction.replaced("here", x)) * self.gamma

        first = last = state[AHEAD] if AHEAD in state else self.gradient(start, "noise of the first step")
        x = step(start, first)
        if tau > 1:
            x = self.between(x, correction, tau - 2)
            last = self.gradient(x, "noise of the last step")
            x = step(x, last)
        return method.after_steps(
            start=start,
            end=x,
            gamma=self.gamma,
            round=r,
            participation=self.instance.topology.participation,
            first=first,
            last=last,
            start_gradient=start_gradient,
        )

    def between(self, x: Form, correction: Form, steps: int) -> Form:
        """x ← B x + d + noise, `steps` times, with B = I − γ(H + the correction's part in x)."""
        if steps == 0:
            return x
        H, n, p = self.quadratic.H, *self.quadratic.h.shape
        slope = correction.parts.get("here", np.zeros((1, 1, 1)))
        rest = Form({name: block for name, block in correction.parts.items() if name != "here"}, correction.constant)
        B = np.broadcast_to(np.eye(p), (n, p, p)) - self.rate * add_blocks(H, slope)
        power, total, spread = _powers(B, self.quadratic.C, steps)
        drift = (rest - Form({}, self.quadratic.h)) * self.gamma
        self.noise["noise between"] = self.noise_of_steps(x, steps, B, -drift, spread)
        return x.through(power) - drift.through(total) - symbol("noise between") * self.gamma


def _powers(B: Array, C: Array, steps: int) -> tuple[Array, Array, Array]:
    """B^k, Σ_{t<k} B^t and Σ_{t<k} B^t C (B^t)ᵀ for k = steps, by doubling k and adding one."""
    power, total, spread = np.broadcast_to(np.eye(B.shape[1]), B.shape), np.zeros_like(B), np.zeros_like(B)
    for bit in f"{steps:b}":
        total = total + power @ total
        spread = spread + power @ spread @ power.transpose(0, 2, 1)
        power = power @ power
        if bit == "1":
            total = total + power
            spread = spread + power @ C @ power.transpose(0, 2, 1)
            power = power @ B
    return power, total, spread


def _with_stepsizes(algorithm: Algorithm) -> Algorithm:
    """The algorithm with its stepsize as a number, or as an array (n, 1)."""
    gamma: Any = algorithm.gamma
    return at_stepsize(algorithm, np.array(gamma)[:, None] if isinstance(gamma, tuple) else gamma)


class Form:
    """Σ_s K_s s + k at every node. `parts` has K_s by the symbol s: (n, p, p), or (n, 1, 1) or (1, 1, 1) for a multiple
    of the identity. `constant` is k, which broadcasts to (n, p)."""

    __array_ufunc__ = None  # so that NumPy uses this class's operators, and refuses all other functions

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
        """H times the form, with H (n, p, p)."""
        constant = self.constant
        if np.ndim(constant):
            constant = (H @ np.broadcast_to(constant, H.shape[:2])[:, :, None])[:, :, 0]
        elif constant:
            constant = constant * H.sum(axis=2)
        return Form({name: multiply_blocks(H, block) for name, block in self.parts.items()}, constant)

    def replaced(self, name: str, by: Form) -> Form:
        """The form with another form substituted for a symbol."""
        if name not in self.parts:
            return self
        rest = Form({other: block for other, block in self.parts.items() if other != name}, self.constant)
        block = self.parts[name]
        return rest + (by.through(block) if block.shape[-1] > 1 else by * block[:, :, 0])


def symbol(name: str) -> Form:
    """The form that is the symbol itself."""
    return Form({name: np.ones((1, 1, 1))})


def as_form(value: Any) -> Form:
    """A form; a number becomes a constant."""
    return value if isinstance(value, Form) else Form({}, _number(value))


def add_blocks(a: Array, b: Array) -> Array:
    """The sum of two blocks, one of which may be a multiple of the identity."""
    if a.shape[-1] == b.shape[-1]:
        return a + b
    if a.shape[-1] == 1:
        a, b = b, a
    return a + b * np.eye(a.shape[-1])


def multiply_blocks(a: Array, b: Array) -> Array:
    """The product of two blocks."""
    return a * b if 1 in (a.shape[-1], b.shape[-1]) else a @ b


def rows(forms: list[Form], symbols: list[str], n: int, p: int) -> tuple[Array, Array]:
    """The forms, stacked vertically, as maps of the symbols, stacked horizontally, (n, len(forms) p, len(symbols) p);
    and their constants (n, len(forms) p)."""
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
    """A number, or one per node (n, 1); a TypeError for anything else, in particular another form."""
    if isinstance(value, Form):
        raise TypeError("a product of vectors is not linear")
    array = np.asarray(value, dtype=np.float64)
    if array.ndim not in (0, 2):
        raise TypeError(f"an array of shape {array.shape} is neither a number nor one number per node")
    return array if array.ndim else float(array)
