"""Checks that an optimiser, a model, an algorithm, a topology and the other nodes fit together."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from stgt._internal.checks import InputError, check_flag
from stgt._internal.registry import TOPOLOGIES
from stgt.algorithms import Algorithm
from stgt.simulator.instance import check_topology_object
from stgt.topology import Topology
from stgt.torch.overlap import Overlap

REQUIRED: Any = ...  # the default of model=, which differs from None
_ddp_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # each DDP made since this module was imported


def _record_ddp(module: nn.Module, name: str, submodule: nn.Module | None) -> None:
    if isinstance(module, DistributedDataParallel):
        _ddp_models.add(module)


# A wrapper leaves no trace in the model that it wraps. So each wrapper is recorded when it registers that model.
register_module_module_registration_hook(_record_ddp)


def check_model(model: Any, parameters: Iterable[Tensor]) -> nn.Module | None:
    """The model; a ValueError if it is missing, lacks some of the parameters, or is wrapped in DDP."""
    refuse_ddp(parameters)
    if model is REQUIRED:
        raise ValueError(
            "model= is missing: give the torch.nn.Module that is trained, or model=None for tensors outside a module."
        )
    if model is None:
        return None
    if not isinstance(model, nn.Module):
        raise InputError("model", model, "give the torch.nn.Module that is trained.")
    trained, held = ({id(parameter) for parameter in some} for some in (parameters, model.parameters()))
    if not trained <= held:
        raise ValueError(
            f"{len(trained - held)} of the optimiser's {len(trained)} parameters are not in model: give the module "
            "that has all of them, such as torch.nn.ModuleList([encoder, decoder])."
        )
    return model


def refuse_ddp(parameters: Iterable[Tensor]) -> None:
    """A ValueError if a model with some of these parameters is wrapped in DistributedDataParallel."""
    trained = {id(parameter) for parameter in parameters}
    if any(id(parameter) in trained for model in _ddp_models for parameter in model.parameters()):
        raise ValueError(
            "the model is wrapped in DistributedDataParallel, which averages the gradients at every step: train the "
            "plain model (model.module); the optimiser does the exchange."
        )


def check_optimizer(optimizer: Any) -> None:
    """A ValueError if the optimiser cannot be wrapped."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError("optimizer", optimizer, "give a torch.optim.Optimizer.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("optimizer", hint=" is LBFGS, which takes many gradients a step: give another, such as SGD.")
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise InputError("optimizer", hint=" has maximize=True: leave it out, and minimise the negative loss.")


def check_tensors(names: Mapping[Tensor, str]) -> None:
    """A ValueError that names a parameter without its own values in this process."""
    for one, name in names.items():
        if bool(is_traceable_wrapper_subclass(one)):
            raise ValueError(
                f"{name} is a {type(one).__name__}, of which a process may have only a part, as with FSDP or tensor "
                "parallelism: give the plain model, as each node trains all of it."
            )
        if one.is_meta:
            raise ValueError(
                f"{name} is on the meta device and has no values: call model.to_empty(device=…) and fill "
                "the model before DistributedOptimizer."
            )


def check_sending(
    algorithm: Algorithm, topology: Topology, optimizer: torch.optim.Optimizer, message_dtype: str | None, early: bool
) -> None:
    """A ValueError if the method's messages cannot be rounded or sent early, but the user asks for it."""
    if message_dtype and algorithm.spec().server_fields and topology.has_server:
        raise InputError(
            "message_dtype",
            message_dtype,
            f"the server's variables of {algorithm.label} would be rounded again every round; leave it out, or use "
            "STGT, whose nodes keep their own.",
        )
    if check_flag(early, "early"):
        if topology.has_push:
            raise InputError(
                "early",
                True,
                f"on {topology.name} a message is mixed by two matrices, but its halves by only one: leave early out.",
            )
        Overlap.check(algorithm, is_plain(optimizer))


def check_elastic(algorithm: Algorithm, topology: Any, early: bool) -> None:
    """A ValueError if a training with these cannot continue after a change of the members."""
    if isinstance(topology, Topology):
        raise InputError(
            "topology",
            topology.name,
            "has a fixed number of nodes, but members change: give its name, or a function of n.",
        )
    made = topology_of(topology, 2)
    if made.has_server or made.has_push:
        raise InputError(
            "topology", made.name, "is not for elastic training: use an undirected or exponential graph, or"
            " stgt.flower, whose clients may come and go."
        )  # fmt: skip
    spec = algorithm.spec()
    if spec.tracks and (spec.invariant or not any(one.zero_sum for one in spec.state)):
        raise InputError(
            "algorithm", algorithm.label, "conserves more than a sum of corrections, which cannot be restored after a"
            " loss: use STGT, KGT, LED, Outer around them, or a method without corrections."
        )  # fmt: skip
    if spec.needs_initial_gradient or spec.communication_probability is not None:
        raise InputError(
            "algorithm", algorithm.label, "begins with an average over all nodes, or skips rounds at random, but here"
            " nodes join later: turn that off, or use STGT."
        )  # fmt: skip
    if early:
        raise InputError("early", True, "half a message may be lost with a node: leave early out if members change.")


def check_divided(algorithm: Algorithm, optimizer: torch.optim.Optimizer) -> None:
    """A ValueError if the method does not fit the optimiser's steps.

    A method that divides by the stepsize needs steps that are multiples of it. One that computes its own step from the
    gradients would discard the optimiser's.
    """
    reads = algorithm.spec().reads
    if "end" not in reads and not is_plain(optimizer):
        raise ValueError(
            f"{algorithm.label} computes its own step from the gradients, and would discard that of "
            f"{type(optimizer).__name__}: give it SGD without momentum."
        )
    if "gamma" in reads and type(optimizer) is not torch.optim.SGD:
        raise ValueError(
            f"{algorithm.label} uses (start − end)/(lr·tau) as the mean of the gradients, which it is not with "
            f"{type(optimizer).__name__}: use SGD, with momentum or without, or STGT, which sums the gradients."
        )
    for group in optimizer.param_groups if "gamma" in reads else ():
        if not (group["momentum"] < 1 and group["dampening"] < 1):
            raise ValueError(
                f"{algorithm.label} divides by lr (1 − dampening)/(1 − momentum), and SGD has momentum="
                f"{group['momentum']:g} and dampening={group['dampening']:g}: give it both below 1."
            )


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Is a step x ← x − lr (g + weight_decay · x)?"""
    return type(optimizer) is torch.optim.SGD and not any(
        group["momentum"] or group["nesterov"] or group["maximize"] or group["differentiable"]
        for group in optimizer.param_groups
    )


def topology_of(topology: Topology | str | Callable[[int], Topology], nodes: int) -> Topology:
    """The topology, if needed made from a name or by a function of n; a ValueError if its number of nodes differs."""
    if not isinstance(topology, Topology | str) and callable(topology):
        topology = topology(nodes)
    if isinstance(topology, str):
        function = TOPOLOGIES.find(topology, "topology")
        parameters = inspect.signature(function).parameters.values()
        if [one.name for one in parameters if one.default is one.empty] != ["n"]:
            raise InputError(
                "topology", topology, f" needs more than a name: give stgt.topology.{topology}(…) of {nodes} nodes."
            )
        return function(n=nodes)
    topology = check_topology_object(topology, "a Topology, or the name of one such as 'exponential'")
    if topology.n != nodes:
        raise InputError("topology", hint=f" has {topology.n} nodes, but {nodes} processes run: make them equal.")
    return topology


def agree(everybody: list[dict[str, Any]]) -> None:
    """A ValueError if the nodes' signatures, by rank, differ."""
    for rank, theirs in enumerate(everybody):
        for name, value in theirs.items():
            if value != everybody[0][name]:
                shown = (
                    "" if name in ("model", "frozen", "buffers", "weights") else f" ({everybody[0][name]} and {value})"
                )
                raise ValueError(f"{name} differs between rank 0 and rank {rank}{shown}: give all nodes the same.")
