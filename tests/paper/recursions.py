"""The papers' recursions, literally, in NumPy: the oracles of this folder's tests (none imports `stgt`)."""

from recursions_onestep import aug_dgm, d_psgd, diging, dsgt, gt_saga, gt_svrg, next_linear, push_pull
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
    "aug_dgm",
    "d_psgd",
    "diging",
    "dsgt",
    "fedavg",
    "fedprox",
    "flexgt",
    "gt_saga",
    "gt_svrg",
    "k_gt",
    "lu_gt",
    "next_linear",
    "push_pull",
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
