"""Exact theory of random rounds: mean-square stability, steady state and expected curve. Rounds are random if W_r is
drawn again each round, or if gradients are those of minibatches.

Let v ← T v + b + B ξ with T, b, B independent of the past. The second moment of e = v − v_ref then follows
Σ ← E[T Σ Tᵀ] + Q, which is linear in Σ. Its spectral radius decides whether E‖x − x*‖² stays bounded. The solution of
Σ = E[T Σ Tᵀ] + Q is the steady state. The covariance of a minibatch's noise is linear in the second moments of the
node's own state (`sample_noise`), so a part of it belongs to E[T Σ Tᵀ].
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from scipy.sparse.linalg import gcrotmk

from stgt._internal.checks import NotCovered
from stgt.simulator.instance import Instance
from stgt.theory.laws import NoExchange, ServerLaw, law_of
from stgt.theory.network import ExactMap, NetworkRounds, all_shares, conserved_rows, spread_of_start
from stgt.theory.node_round import Curvature, curvature, first_state, node_round
from stgt.theory.phases import KnownMixing, RandomMixing, Sampling
from stgt.theory.solvers import Splitting, Tries, by_arnoldi, operator

Array = np.ndarray
LARGEST = 1500  # the most entries of a state for which second moments are computed
EIGENVALUES_UP_TO = 8  # up to this many entries, all eigenvalues of the second moments' map are computed
DRAWN = 4  # rounds drawn to find the sums that none of them changes
TRIES: Tries = ((50, 8, 1e-9), (100, 20, 1e-8))  # vectors, restarts and precision of Arnoldi's method
QUICK: Tries = ((20, 20, 1e-6), *TRIES)  # to about seven digits
GROUPS = 4  # groups of drawn rounds, for an estimate of the standard error
KEPT = 40  # vectors of the solver for the steady state


class MeanSquare(ExactMap):
    """The moments of random rounds. A phase is a round of the period with which their law repeats.

    Attributes:
        instance: the instance that runs them.
        period: the number of phases.
        exact: are the moments of W_r known in closed form?
    """

    def __init__(
        self, instance: Instance, x0: Array, quadratic: Curvature | None = None, conserved: Array | None = None
    ) -> None:
        self.instance, self._likely, topology = instance, conserved, instance.topology
        self.period = topology.period or topology.structure.phases
        self.quadratic = curvature(instance) if quadratic is None else quadratic
        v, self._own, self._shared = first_state(instance, self.quadratic, x0)
        self.optimum, self.shape = np.asarray(instance.problem.optimum), v.shape
        self._first_noise = self.quadratic.noise_at(x0)
        if topology.period is None or instance.tosses:
            self.phases = [self._phase(r) for r in range(self.period)]
        else:
            _check_size(v.size)  # before large maps are computed
            rounds = NetworkRounds(instance, x0, self.quadratic)
            self.phases = [KnownMixing(rounds, r) for r in range(self.period)]
        first = self.phases[0]
        self.places = first.places if isinstance(first, Sampling) else np.arange(v.size).reshape(v.shape)
        self.start = np.zeros(self.places.max() + 1)
        self.start[self.places] = v
        _check_size(len(self.start))
        self.exact = all(phase.exact for phase in self.phases)

    def _phase(self, r: int) -> RandomMixing | Sampling:
        """Round r of the period."""
        instance, algorithm = self.instance, self.instance.algorithm
        round = node_round(instance, self.quadratic, r)
        law = law_of(round, algorithm, instance.topology, r)
        held = [name in instance.spec.server_fields and instance.topology.has_server for name in round.fields]
        one_for_all = np.repeat(held, instance.problem.p)
        if instance.tosses:
            silent = node_round(instance, self.quadratic, r, communicates=False)
            chance = float(instance.spec.communication_probability)
            laws = [(chance, law, round), (1 - chance, NoExchange(silent), silent)]
            return RandomMixing(laws, self.shape, one_for_all)
        if isinstance(law, ServerLaw) and any(held) and not law.E.any():
            return Sampling(law, round)
        return RandomMixing([(1.0, law, round)], self.shape, one_for_all)

    @cached_property
    def conserved(self) -> Array:
        """Orthonormal rows (q p, d) of the sums over nodes that no round changes, for any draw. Rows given from another
        stepsize are used if they still are such sums."""
        (n, size), p = self.shape, self.instance.problem.p
        shares = all_shares(n, size // p)
        if len(self.start) < n * size:  # the server's variables are stored once
            slots = self.places.reshape(n, -1, p)[:, :, 0].ravel() // p
            shares = np.unique(shares @ np.eye(len(self.start) // p)[slots], axis=0)
        changes = [partial(phase.change, number) for phase in self.phases for number in (None, *range(DRAWN))]
        return conserved_rows(shares, p, changes, self._likely)

    @cached_property
    def spectral_radius(self) -> float:
        return self.radius(TRIES)

    def radius(self, tries: Tries) -> float:
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
            raise NotCovered(
                f"the mean-square radius of {self} did not converge: give a topology with a larger spectral gap."
            )
        return found ** (0.5 / self.period)

    @cached_property
    def growth(self) -> float:
        """Second moments stay bounded if it is below 1, and grow without bound above. Faster than the radius."""
        return self.splitting.growth

    @cached_property
    def splitting(self) -> Splitting:
        """The map of a period, split into its mean and its random part."""
        return Splitting(self._mean, self._random_part, self.conserved)

    @cached_property
    def _mean(self) -> Array:
        """E[T] of a period, (D, D)."""
        M = np.eye(len(self.start))
        for phase in self.phases:
            M = phase.mean(M, 0.0)
        return M

    @cached_property
    def references(self) -> list[Array]:
        """E v at the start of each phase at the steady state: the points about which second moments are taken."""
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

    @property
    def stable(self) -> bool:
        return self.growth < 1

    def long_run(self) -> tuple[float, ...]:
        """If the law of W_r is known from drawn rounds only: the mean over groups, with its standard error."""
        if self.exact:
            return self._long_run()
        topology, models, seen = self.instance.topology, self.places[:, : self.instance.problem.p], []
        for group in range(GROUPS):
            other = replace(self.instance, topology=topology.with_seed((topology.seed + 7919 * group) % 2**32))
            seen.append(MeanSquare(other, self.start[models], self.quadratic)._long_run())
        residual, consensus, bias = np.mean(seen, axis=0).tolist()
        residual_error, consensus_error, _ = (np.std(seen, axis=0, ddof=1) / GROUPS**0.5).tolist()
        return residual, consensus, bias, consensus_error, residual_error

    def _long_run(self) -> tuple[float, float, float]:
        """E‖x̄ − x*‖², E‖X − 1x̄‖² and ‖E x̄ − x*‖² at the steady state, their means over a period."""
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
                f"the steady state of {self} did not converge: give a larger gamma or a topology with a larger "
                "spectral gap."
            )
        seen = []
        for phase, v, noise in zip(self.phases, self.references, self.noises, strict=True):
            seen.append(self._errors(v, moment, np.zeros(size)))
            moment = phase.second(moment) + noise
        residual, consensus, bias = np.mean(seen, axis=0).tolist()
        return residual, consensus, bias

    def curve(self, rounds: int) -> Array:
        mean = self.start - self.references[0]
        spread = spread_of_start(np.eye(self.places.size), self._own, self._shared, self._first_noise)
        first = np.unique(self.places, return_index=True)[1]  # the server's variables are in every node's state
        moment, found = np.outer(mean, mean) + spread[np.ix_(first, first)], []
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
        n, p = self.instance.problem.n, self.instance.problem.p
        models = self.places[:, :p]
        x, off = v[models], mean[models]
        centre, apart = x.mean(axis=0) - self.optimum, x - x.mean(axis=0)
        spread = sum(float(moment[np.ix_(one, one)].sum()) for one in models.T) / n**2
        residual = spread + 2 * float(centre @ off.mean(axis=0)) + float(centre @ centre)
        consensus = float(moment[models, models].sum()) - n * spread
        consensus += 2 * float((apart * off).sum()) + float((apart**2).sum())
        bias = centre + off.mean(axis=0)
        return residual, max(consensus, 0.0), float(bias @ bias)

    def _over_period(self, moment: Array, noises: list[Array] | None = None) -> Array:
        """A second moment after all phases."""
        for number, phase in enumerate(self.phases):
            moment = phase.second(moment)
            if noises is not None:
                moment = moment + noises[number]
        return moment

    def _random_part(self, moment: Array) -> Array:
        """E[T Σ Tᵀ] − E[T] Σ E[T]ᵀ of a period."""
        if self.period == 1:  # computed directly: a difference would add rounding errors
            return self.phases[0].random_part(moment)
        return self._over_period(moment) - self._mean @ moment @ self._mean.T

    def _free(self, moment: Array) -> Array:
        """A second moment without its parts along conserved sums."""
        C = self.conserved
        moment = moment - C.T @ (C @ moment)
        return moment - (moment @ C.T) @ C


def _check_size(entries: int) -> None:
    """Raises NotCovered if a state has too many entries for second moments."""
    if entries > LARGEST:
        raise NotCovered(
            f"the state has {entries} entries, and second moments have the square of that: give a problem with an n·p "
            f"that needs at most {LARGEST}."
        )
