"""Finding the module that an optimiser's parameters belong to."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def model_of(parameters: Iterable[Tensor], given: nn.Module | None) -> nn.Module | None:
    """The module whose parameters these are: the one given, else one found without doubt; None for loose tensors.

    Without doubt means that exactly they are the parameters of one living module that is part of no other.
    """
    wanted = {id(parameter) for parameter in parameters}
    holders = _holders(wanted)
    refuse_wrapped(holders)
    if given is not None:
        if not isinstance(given, nn.Module):
            raise ValueError(f"model={given!r}: give the torch.nn.Module that is trained.")
        held = {id(parameter) for parameter in given.parameters()}
        if not wanted <= held:
            raise ValueError(
                f"{len(wanted - held)} of the optimiser's {len(wanted)} parameters are not in model: give the module "
                "that holds all of them, such as torch.nn.ModuleList([encoder, decoder])."
            )
        return given
    roots = _roots(holders)
    if len(roots) > 1 or (roots and not _exact(roots[0], wanted)):
        gc.collect()  # a module that is out of use may not have gone yet
        roots = _roots(_holders(wanted))
    if not roots:
        return None
    if len(roots) == 1 and _exact(roots[0], wanted):
        return roots[0]
    names = " and ".join(sorted(type(one).__name__ for one in roots))
    raise ValueError(
        f"the optimiser's {len(wanted)} parameters are not all of one module ({names}): give model=, the module whose "
        "frozen parameters and buffers are to be the same on all nodes."
    )


def refuse_wrapped(modules: Iterable[nn.Module]) -> None:
    """A ValueError if a model is wrapped in DDP."""
    if any(isinstance(one, DistributedDataParallel) for one in modules):
        raise ValueError(
            "the model is wrapped in DistributedDataParallel, which averages the gradients at every step: train the "
            "plain model (model.module), the exchange is the optimiser's."
        )


def holders_of(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """The living modules that hold some of the parameters."""
    return _holders({id(parameter) for parameter in parameters})


def _holders(wanted: set[int]) -> list[nn.Module]:
    found = []
    for one in gc.get_objects():
        if not issubclass(type(one), nn.Module) or "_parameters" not in vars(one):
            continue
        if any(id(parameter) in wanted for parameter in one.parameters()):
            found.append(one)
    return found


def _roots(modules: list[nn.Module]) -> list[nn.Module]:
    """Those that are part of no other, one of several that hold the same."""
    parts = {id(part) for one in modules for part in one.modules() if part is not one}
    roots: dict[frozenset[int], nn.Module] = {}
    for one in modules:
        if id(one) not in parts:
            held = frozenset(id(tensor) for tensor in (*one.parameters(), *one.buffers()))
            roots.setdefault(held, one)
    return list(roots.values())


def _exact(module: nn.Module, wanted: set[int]) -> bool:
    return {id(parameter) for parameter in module.parameters()} == wanted
