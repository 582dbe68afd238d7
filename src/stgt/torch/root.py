"""Finding the module that an optimiser's parameters belong to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

_wrappers: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # each DDP since this module was imported


def _note_wrapper(module: nn.Module, name: str, submodule: nn.Module | None) -> None:
    if isinstance(module, DistributedDataParallel):
        _wrappers.add(module)


register_module_module_registration_hook(_note_wrapper)


def model_of(parameters: Iterable[Tensor], given: nn.Module | None) -> nn.Module | None:
    """The module whose parameters these are: the one given, else one found without doubt; None for loose tensors.

    Without doubt means that exactly they are the parameters of one living module that is part of no other.
    """
    parameters = list(parameters)
    refuse_wrapped(parameters)
    wanted = {id(parameter) for parameter in parameters}
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
    roots = _roots(_holders(wanted))
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


def refuse_wrapped(parameters: Iterable[Tensor]) -> None:
    """A ValueError if a model with some of these parameters is wrapped in DDP."""
    wanted = {id(parameter) for parameter in parameters}
    if any(id(parameter) in wanted for one in _wrappers for parameter in one.parameters()):
        raise ValueError(
            "the model is wrapped in DistributedDataParallel, which averages the gradients at every step: train the "
            "plain model (model.module), the exchange is the optimiser's."
        )


def _holders(wanted: set[int]) -> list[nn.Module]:
    """The living modules that hold some of the parameters."""
    everything = gc.get_objects()
    kinds = {one for one in set(map(type, everything)) if issubclass(one, nn.Module)}  # of each type, not each object
    modules = [one for one in everything if type(one) in kinds and "_parameters" in vars(one)]
    return [one for one in modules if any(id(parameter) in wanted for parameter in one.parameters())]


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
