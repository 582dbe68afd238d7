"""The papers' recursions, literally, in NumPy: the oracles of this folder's tests (none imports `stgt`)."""

from recursions_adaptive import ServerOpt, adaptive_scaffold_plus, adaptive_st_gt, fed_opt, fedavgm
from recursions_diffusion import d_squared, exact_diffusion, extra, feddyn, gt_adam, led, momentum_tracking
from recursions_onestep import aug_dgm, d_psgd, diging, dsgt, gt_saga, gt_svrg, next_linear, push_pull
from recursions_outer import diloco, noloco, outer_led, outer_scaffold_plus, outer_st_gt
from recursions_relaxed import relaxed_flexgt, relaxed_k_gt, relaxed_lu_gt, relaxed_scaffold, relaxed_st_gt
from recursions_server import (
    fedavg,
    fedprox,
    scaffnew,
    scaffnew_periodic,
    scaffold,
    scaffold_plus,
    scaffold_plus_tracking,
    scaffold_uplink_only,
)
from recursions_tracking import (
    flexgt,
    k_gt,
    lu_gt,
    st_gt,
    st_gt_algorithm1_fixed,
    st_gt_algorithm1_printed,
    st_gt_four_buffers,
)

__all__ = [
    "ServerOpt",
    "adaptive_scaffold_plus",
    "adaptive_st_gt",
    "aug_dgm",
    "d_psgd",
    "d_squared",
    "diging",
    "diloco",
    "dsgt",
    "exact_diffusion",
    "extra",
    "fed_opt",
    "fedavg",
    "fedavgm",
    "feddyn",
    "fedprox",
    "flexgt",
    "gt_adam",
    "gt_saga",
    "gt_svrg",
    "k_gt",
    "led",
    "lu_gt",
    "momentum_tracking",
    "next_linear",
    "noloco",
    "outer_led",
    "outer_scaffold_plus",
    "outer_st_gt",
    "push_pull",
    "relaxed_flexgt",
    "relaxed_k_gt",
    "relaxed_lu_gt",
    "relaxed_scaffold",
    "relaxed_st_gt",
    "scaffnew",
    "scaffnew_periodic",
    "scaffold",
    "scaffold_plus",
    "scaffold_plus_tracking",
    "scaffold_uplink_only",
    "st_gt",
    "st_gt_algorithm1_fixed",
    "st_gt_algorithm1_printed",
    "st_gt_four_buffers",
]
