"""DISROPT's GradientTracking, one process for each node over MPI. It has no local steps. Its tracker evaluates each
gradient twice, so it cannot have noise.
"""

from __future__ import annotations

import time

import numpy as np
from disropt.agents import Agent
from disropt.algorithms.gradient_tracking import GradientTracking
from disropt.functions import QuadraticForm, Variable
from disropt.problems import Problem
from mpi4py import MPI
from setting import measured, read

setting = read()
world = MPI.COMM_WORLD
i = world.Get_rank()
neighbours = [j for j in np.flatnonzero(setting.W[i]).tolist() if j != i]
agent = Agent(in_neighbors=neighbours, out_neighbors=neighbours, in_weights=setting.W[i].tolist())
x = Variable(setting.p)
P = np.outer(setting.theta[i], setting.theta[i]) + setting.mu / 2 * np.eye(setting.p)
q = -2 * setting.d[i] * setting.theta[i][:, None]
agent.problem = Problem(QuadraticForm(x, P, q), force_general_problem=True)


def run(rounds):
    method = GradientTracking(agent, initial_condition=np.zeros((setting.p, 1)))
    world.Barrier()
    start = time.perf_counter()
    method.run(iterations=rounds, stepsize=setting.gamma)
    world.Barrier()
    seconds = world.bcast(time.perf_counter() - start)  # one clock, because all must run the same number of rounds
    return seconds, np.stack(world.allgather(method.get_result()[:, 0]))


measured(setting, run, ("disropt", "mpi4py", "numpy"), answers=i == 0)
