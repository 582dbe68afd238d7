"""Training over processes with torch.distributed: any torch optimiser, with an exchange after every tau-th step.

Most scripts need `from stgt.torch import DistributedOptimizer, init, node_split`.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("stgt.torch needs PyTorch: pip install 'stgt[torch]'.") from error

from stgt.torch.data import ClockSampler, node_split
from stgt.torch.elastic import Left, TooFewNodesError
from stgt.torch.elastic_data import ElasticSampler
from stgt.torch.failure_detector import DeadlockError, LostNodeError
from stgt.torch.finite import NonFiniteError
from stgt.torch.optimizer import DistributedOptimizer
from stgt.torch.process_group import init

__all__ = [
    "ClockSampler",
    "DeadlockError",
    "DistributedOptimizer",
    "ElasticSampler",
    "Left",
    "LostNodeError",
    "NonFiniteError",
    "TooFewNodesError",
    "init",
    "node_split",
]
