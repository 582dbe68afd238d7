"""Random rounds, exactly: mean-square stability, steady state and expected curve where W_r is drawn anew each round, or
gradients are of minibatches.

With v ← T v + b + B ξ and T, b, B independent of the past, the second moment of e = v − v_ref obeys
Σ ← E[T Σ Tᵀ] + Q, which is linear in Σ. Its spectral radius decides whether E‖x − x*‖² stays bounded; the solution of
Σ = E[T Σ Tᵀ] + Q is the long run. A minibatch's noise has a covariance that is linear in the second moments of the
node's own state (`sample_noise`): a part of it belongs to E[T Σ Tᵀ].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse.linalg import gcrotmk

from stgt._internal.checks import NotCovered
from stgt.simulator.setting import Setting
from stgt.theory.known_mixing import KnownMixing
from stgt.theory.large import by_arnoldi, operator
from stgt.theory.laws import Law, Server, Silent, law_of, left, right
from stgt.theory.node_round import Curvature, NodeRound, curvature, first_state, node_round
from stgt.theory.rounds import STAYS, Rounds, all_shares, conserved_rows
from stgt.theory.sample_noise import bordered, both_ways, with_one
from stgt.theory.sampling import Sampling, unless_rounding
from stgt.theory.splitting import Splitting

Array = np.ndarray
LARGEST = 1500  # entries of a state whose second moments are still ordinary
EIGENVALUES_UP_TO = 8  # entries of a state all of whose second moments' eigenvalues are found
DRAWN = 4  # rounds drawn to see what none of them changes
TRIES: Any = ((50, 8, 1e-9), (100, 20, 1e-8))  # vectors, restarts and precision of Arnoldi's method
QUICK: Any = ((20, 20, 1e-6), *TRIES)  # to about seven digits
GROUPS = 4  # of drawn rounds, to see how much what they say differs
KEPT = 40  # vectors of the solver that finds the long run


class MeanSquare:
    """The moments of random rounds. A phase is a round of the period with which their law repeats.

    Attributes:
        setting: whose rounds they are.
        period: how many phases there are.
        exact: are the moments of W_r known in closed form?
    """

    def __init__(
        self, setting: Setting, x0: Array, quadratic: Curvature | None = None, conserved: Array | None = None
    ) -> None:
        self.setting, self._likely, topology = setting, conserved, setting.topology
        self.period = topology.period or topology.structure.phases
        self.quadratic = curvature(setting) if quadratic is None else quadratic
        v, self._own, self._shared = first_state(setting, self.quadratic, x0)
        self.optimum, self.shape = np.asarray(setting.problem.optimum), v.shape
        self._first_noise = self.quadratic.noise_at(x0)
        if topology.period is None or setting.tosses:
            self.phases = [self._phase(r) for r in range(self.period)]
        else:
            _check_size(v.size)  # before maps of that size are made
            rounds = Rounds(setting, x0, self.quadratic)
            self.phases = [KnownMixing(rounds, r) for r in range(self.period)]
        first = self.phases[0]
        self.places = first.places if isinstance(first, Sampling) else np.arange(v.size).reshape(v.shape)
        self.start = np.zeros(self.places.max() + 1)
        self.start[self.places] = v
        _check_size(len(self.start))
        self.exact = all(phase.exact for phase in self.phases)

    def _phase(self, r: int) -> _Phase | Sampling:
        """Round r of the period."""
        setting, algorithm, talks = self.setting, self.setting.algorithm, float(self.setting.algorithm.talks)
        round = node_round(setting, self.quadratic, r)
        law = law_of(round, algorithm, setting.topology, r)
        held = [name in algorithm.held and setting.topology.has_server for name in round.fields]
        one_for_all = np.repeat(held, setting.problem.p)
        if setting.tosses:
            silent = node_round(setting, self.quadratic, r, talks=False)
            return _Phase([(talks, law, round), (1 - talks, Silent(silent), silent)], self.shape, one_for_all)
        if isinstance(law, Server) and any(held) and not law.E.any():
            return Sampling(law, round)
        return _Phase([(1.0, law, round)], self.shape, one_for_all)

    @cached_property
    def conserved(self) -> Array:
        """Orthonormal rows (q p, d) of the sums over nodes that no round changes, whatever is drawn; those that were
        given, as found at another stepsize, if they still are."""
        (n, size), p = self.shape, self.setting.problem.p
        shares = all_shares(n, size // p)
        if len(self.start) < n * size:  # what a server holds counts once
            slots = self.places.reshape(n, -1, p)[:, :, 0].ravel() // p
            shares = np.unique(shares @ np.eye(len(self.start) // p)[slots], axis=0)
        changes = [partial(phase.change, number) for phase in self.phases for number in (None, *range(DRAWN))]
        likely = self._likely
        if likely is not None and len(likely) and all(np.abs(one(likely)).max() <= 10 * STAYS for one in changes):
            return likely
        return conserved_rows(shares, p, changes)

    @cached_property
    def spectral_radius(self) -> float:
        """The factor a round of the root mean square, in the long run; above 1 second moments grow without bound."""
        return self.radius(TRIES)

    def radius(self, tries: Any) -> float:
        """The spectral radius by Arnoldi's method with these numbers of vectors and restarts, and precisions."""
        size = len(self.start)

        def forward(flat: Array) -> Array:
            return self._over_period(self._free(flat.reshape(size, size))).ravel()

        if size <= EIGENVALUES_UP_TO:
            columns = np.stack([forward(one) for one in np.eye(size * size)], axis=1)
            found = float(np.abs(np.linalg.eigvals(columns)).max())
        else:
            found = by_arnoldi(forward, size * size, self.splitting.likely.ravel(), tries)
        if found is None:
            setting = self.setting
            raise NotCovered(
                f"the mean-square radius of {setting.algorithm.label} with gamma={setting.algorithm.gamma} on "
                f"{setting.topology.name} did not settle: give a topology with a larger spectral gap."
            )
        return found ** (0.5 / self.period)

    @cached_property
    def growth(self) -> float:
        """Below 1 second moments stay bounded, above they grow without bound; quicker to find than the radius."""
        return self.splitting.growth

    @cached_property
    def splitting(self) -> Splitting:
        """A period, as its mean and what is random about it."""
        return Splitting(self._mean, self._over_period, self.conserved)

    @cached_property
    def _mean(self) -> Array:
        """E[T] of a period, (D, D)."""
        M = np.eye(len(self.start))
        for phase in self.phases:
            M = phase.mean(M, 0.0)
        return M

    @cached_property
    def references(self) -> list[Array]:
        """E v at the start of each phase, in the long run: the points that second moments are taken about."""
        size, C, M = len(self.start), self.conserved, self._mean
        b = np.zeros(size)
        for phase in self.phases:
            b = phase.mean(b[:, None], 1.0)[:, 0]
        found = [np.linalg.solve(np.eye(size) - M + C.T @ C, b + C.T @ (C @ self.start))]
        for phase in self.phases[:-1]:
            found.append(phase.mean(found[-1][:, None], 1.0)[:, 0])
        return found

    @cached_property
    def noises(self) -> list[Array]:
        """Q of each phase, (D, D)."""
        return [phase.noise(v) for phase, v in zip(self.phases, self.references, strict=True)]

    def steady_state(self) -> tuple[float, float, float, float, float]:
        """The fields of `SteadyState`; needs a spectral radius below 1.

        Where the law of W_r is known from drawn rounds only, the mean over groups of them, with its standard error.
        """
        if self.exact:
            return *self._long_run(), 0.0, 0.0
        topology, models, seen = self.setting.topology, self.places[:, : self.setting.problem.p], []
        for group in range(GROUPS):
            other = replace(self.setting, topology=topology.with_seed((topology.seed + 7919 * group) % 2**32))
            seen.append(MeanSquare(other, self.start[models], self.quadratic)._long_run())
        residual, consensus, bias = np.mean(seen, axis=0).tolist()
        residual_error, consensus_error, _ = (np.std(seen, axis=0, ddof=1) / GROUPS**0.5).tolist()
        return residual, consensus, bias, consensus_error, residual_error

    def _long_run(self) -> tuple[float, float, float]:
        """E‖x̄ − x*‖², E‖X − 1x̄‖² and ‖E x̄ − x*‖² in the long run, their means over a period."""
        size, split = len(self.start), self.splitting

        def slow(flat: Array) -> Array:
            given = flat.reshape(size, size)
            return (given - split.summed(split.random_part((given + given.T) / 2))).ravel()

        all_sums = split.summed(self._over_period(np.zeros((size, size)), self.noises)).ravel()
        solution, _ = gcrotmk(operator(slow, size * size), all_sums, rtol=1e-11, atol=0.0, m=KEPT, k=KEPT // 2)
        moment = solution.reshape(size, size)
        off = np.linalg.norm(slow(solution) - all_sums)
        if off > 1e-7 * (1 - self.growth) * max(np.linalg.norm(all_sums), 1e-300):
            raise NotCovered(
                f"the steady state of {self.setting.algorithm.label} on {self.setting.topology.name} did not settle: "
                "give a larger gamma or a topology with a larger spectral gap."
            )
        seen = []
        for phase, v, noise in zip(self.phases, self.references, self.noises, strict=True):
            seen.append(self._errors(v, moment, np.zeros(size)))
            moment = phase.second(moment) + noise
        residual, consensus, bias = np.mean(seen, axis=0).tolist()
        return residual, consensus, bias

    def curve(self, rounds: int) -> Array:
        """E‖x̄ − x*‖² at the start of each round and after the last, (rounds + 1,)."""
        mean = self.start - self.references[0]
        moment, found = np.outer(mean, mean) + self._start_noise(), []
        for r in range(rounds + 1):
            place = r % self.period
            phase, v = self.phases[place], self.references[place]
            found.append(self._errors(v, moment, mean)[0])
            if r < rounds:
                moment = phase.second(moment) + self.noises[place] + phase.across(v, mean)
                mean = phase.mean(mean[:, None], 0.0)[:, 0]
        return np.array(found)

    def _errors(self, v: Array, moment: Array, mean: Array) -> tuple[float, float, float]:
        """E‖x̄ − x*‖², E‖X − 1x̄‖² and ‖E x̄ − x*‖² for v plus a deviation of this second moment and mean."""
        n, p = self.setting.problem.n, self.setting.problem.p
        models = self.places[:, :p]
        x, off = v[models], mean[models]
        centre, apart = x.mean(axis=0) - self.optimum, x - x.mean(axis=0)
        spread = sum(float(moment[np.ix_(one, one)].sum()) for one in models.T) / n**2
        residual = spread + 2 * float(centre @ off.mean(axis=0)) + float(centre @ centre)
        consensus = float(moment[models, models].sum()) - n * spread
        consensus += 2 * float((apart * off).sum()) + float((apart**2).sum())
        bias = centre + off.mean(axis=0)
        return residual, max(consensus, 0.0), float(bias @ bias)

    def _start_noise(self) -> Array:
        """The covariance of the state before round 0, (d, d)."""
        n, size = self.shape
        own, shared, C = self._own, self._shared, self._first_noise
        p = C.shape[1]
        both = np.zeros((n, 2 * p, 2 * p))
        both[:, :p, :p] = both[:, p:, p:] = C
        columns = np.zeros((n, size, n, 2 * p))
        columns[np.arange(n), :, np.arange(n)] = own
        columns += shared[:, :, None] / n
        entering = np.zeros((len(self.start), n, 2 * p))
        entering[self.places.ravel()] = columns.reshape(n * size, n, 2 * p)
        return np.einsum("anq,nqr,bnr->ab", entering, both, entering, optimize=True)

    def _over_period(self, moment: Array, noises: list[Array] | None = None) -> Array:
        """A second moment after all phases."""
        for number, phase in enumerate(self.phases):
            moment = phase.second(moment)
            if noises is not None:
                moment = moment + noises[number]
        return moment

    def _free(self, moment: Array) -> Array:
        """A second moment without its parts along what is conserved."""
        C = self.conserved
        moment = moment - C.T @ (C @ moment)
        return moment - (moment @ C.T) @ C


def _check_size(entries: int) -> None:
    """NotCovered if a state has too many entries for second moments."""
    if entries > LARGEST:
        raise NotCovered(
            f"the state has {entries} entries, and second moments square that: give a problem with n·p small enough "
            f"for {LARGEST}."
        )


class _Phase:
    """What a random round does to moments: means (D, b) and second moments (D, D).

    `one_for_all` are the entries of a node's state that a server holds. All nodes have the same ones, and their mean is
    what a round reads.
    """

    def __init__(self, laws: list[tuple[float, Law, NodeRound]], shape: tuple[int, int], one_for_all: Array) -> None:
        self.laws, self.shape, self.one_for_all = laws, shape, np.flatnonzero(one_for_all)
        self.exact = all(law.exact for _, law, _ in laws)

    def mean(self, columns: Array, constant: float) -> Array:
        """E[T] v for each column v, with E[b] added `constant` times."""
        return self._mean_over(lambda law, _: law.mean(self._y(law, columns, constant)))

    def second(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] of a symmetric Σ; what rounding has left of an asymmetry would grow."""
        n, size = self.shape
        moment = (moment + moment.T) / 2
        blocks = self._levelled(self._levelled(moment).reshape(n * size, -1).T).reshape(n, size, n, size)

        own = bordered(blocks[np.arange(n), :, np.arange(n)])

        def of_one(law: Law, round: NodeRound) -> Array:
            rows = law.rows[:, :, :size]
            Y = right(left(rows, blocks), rows)
            return law.second(self._with_noise(Y, law, round, own) if round.sampled else Y)

        return self._mean_over(of_one)

    def noise(self, v: Array) -> Array:
        """E[B Bᵀ], and the covariance of T v + b."""
        known = with_one(self._levelled(v[:, None])[:, :, 0], 1.0)
        return self._noise(known[:, :, None] * known[:, None]) + self.across(v, None)

    def _noise(self, M: Array) -> Array:
        """E[B Bᵀ], with noises of the covariances that go with the second moments M of every node's (state, 1)."""

        def of_noise(law: Law, round: NodeRound) -> Array:
            n, q = law.rows.shape[:2]
            return law.second(self._with_noise(np.zeros((n, q, n, q)), law, round, M))

        return self._mean_over(of_noise)

    def _with_noise(self, Y: Array, law: Law, round: NodeRound, M: Array) -> Array:
        """Y = E[y yᵀ], to which these noises are added in place."""
        diagonal, rows = np.arange(len(M)), law.rows[:, :, self.shape[1] :]
        Y[diagonal, :, diagonal] += rows @ round.spread(M) @ rows.transpose(0, 2, 1)
        return Y

    def across(self, v: Array, mean: Array | None) -> Array:
        """The covariance of T v + b; with `mean` that of it and T times a deviation with this mean, both ways."""
        to = self.mean(v[:, None], 1.0)
        with_it = to if mean is None else self.mean(mean[:, None], 0.0)

        def of_one(law: Law, _: NodeRound) -> Array:
            y = self._y(law, v[:, None], 1.0)[:, :, 0]
            other = y if mean is None else self._y(law, mean[:, None], 0.0)[:, :, 0]
            Y = y[:, :, None, None] * other[None, None]
            return law.second(Y if mean is None else Y + Y.transpose(2, 3, 0, 1))

        expected = to @ with_it.T
        found = self._mean_over(of_one) - (expected if mean is None else expected + expected.T)
        found = unless_rounding(found, expected)
        if mean is None or not any(round.sampled for _, _, round in self.laws):
            return found
        deviations = (self._levelled(one[:, None])[:, :, 0] for one in (v, mean))
        return found + self._noise(both_ways(*deviations))

    def change(self, number: int | None, rows: Array) -> Array:
        """What a drawn round (None: the mean of all) does to the rows (k, D) of sums, (·, k): u T − u, u b, and how
        noise would enter."""
        (n, size), one = self.shape, np.eye(rows.shape[1])
        found = []
        for _, law, round in self.laws:
            known = round.known - size
            noise = np.zeros((n, known, n, known))
            noise[np.arange(n), :, np.arange(n)] = np.eye(known)
            given = (
                self._y(law, one, 0.0),
                law.rows[:, :, size:] @ noise.reshape(n, known, -1),
                self._y(law, 0 * one[:1].T, 1.0),
            )
            moved, entering, drift = (
                (law.mean(y) if number is None else law.drawn(number, y)).reshape(n * size, -1) for y in given
            )
            found += [rows @ (moved - one), rows @ entering, rows @ drift]
        return np.concatenate(found, axis=1).T

    def _y(self, law: Law, columns: Array, constant: float) -> Array:
        size = self.shape[1]
        return law.rows[:, :, :size] @ self._levelled(columns) + constant * law.constant[:, :, None]

    def _levelled(self, columns: Array) -> Array:
        """Columns (D, b) as (n, k p, b), with what a server holds the same at all nodes."""
        n, size = self.shape
        blocks = columns.reshape(n, size, -1)
        if len(self.one_for_all):
            blocks = blocks.copy()
            blocks[:, self.one_for_all] = blocks[:, self.one_for_all].mean(axis=0)
        return blocks

    def _mean_over(self, of_one: Callable[[Law, NodeRound], Array]) -> Array:
        first, *others = [(chance, of_one(law, round)) for chance, law, round in self.laws]
        total = first[0] * first[1] if others else first[1]
        for chance, found in others:
            total = total + chance * found
        return total.reshape(self.shape[0] * self.shape[1], -1)
