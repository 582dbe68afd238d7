"""A study: the runs of a spec file, made side by side, kept in a folder, and looked at."""

from stgt.experiments.study.execute import Elsewhere, LostWorkersError, execute
from stgt.experiments.study.folder import Folder, list_folders
from stgt.experiments.study.plan import KINDS, Batch, Plan, plan
from stgt.experiments.study.result import load_comparison, load_study, write_results

__all__ = [
    "Batch",
    "Elsewhere",
    "Folder",
    "KINDS",
    "LostWorkersError",
    "Plan",
    "execute",
    "list_folders",
    "load_comparison",
    "load_study",
    "plan",
    "write_results",
]
