"""How exact trackers are on the language model: torchrun --nproc-per-node 4 benchmarks/tracking_noise.py

At four points of a training it measures at the mean model: how noisy and how different the nodes' gradients are, how
close a tracker's c is to its target, and how AdamW's states differ. In addition to the methods it has variants that
are not in the library: AdamW's state averaged at the ends of rounds, and corrections of the updates.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, init

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from language_model import BATCH, INNER, RATES, LanguageModel, share, warm_up_and_cosine

BATCHES = 24  # for the estimates of a gradient and its variance
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class OfUpdates(stgt.Algorithm):
    """LED's one-vector tracker in units of a round's change: C ← C + β(h − W h). Every step, the loop subtracts C/tau
    from x in addition to AdamW's update. So it corrects the updates and not the gradients."""

    beta: float = 0.25

    def spec(self) -> stgt.RoundSpec:
        return stgt.RoundSpec(state=[stgt.StateVar("c", zero_sum=True)])

    def merge(self, state: Any, local: Any, mixed: Any) -> dict[str, Any]:
        return {"x": mixed["x"], "c": state["c"] + self.beta * (local.end - mixed["x"])}


def variants(tau: int) -> dict[str, tuple[stgt.Algorithm, str, tuple[str, ...]]]:
    """A method, its graph, and the parts of AdamW's state that are averaged at the ends of rounds."""
    fedavg, diloco, relaxed = stgt.FedAvg(tau=tau), stgt.DiLoCo(tau=tau, momentum=0.6), stgt.STGT(tau=tau, beta=0.25)
    return {
        "FedAvg": (fedavg, "complete", ()),
        "FedAvg, v": (fedavg, "complete", MOMENTS[1:]),
        "FedAvg, m and v": (fedavg, "complete", MOMENTS),
        "FedAvg, 1.75 times": (stgt.Outer(fedavg, lr=1.75, momentum=0.0), "complete", ()),
        "DiLoCo": (diloco, "complete", ()),
        "DiLoCo, v": (diloco, "complete", MOMENTS[1:]),
        "DiLoCo, m and v": (diloco, "complete", MOMENTS),
        "ST-GT": (stgt.STGT(tau=tau), "exponential", ()),
        "ST-GT 0.25": (relaxed, "exponential", ()),
        "ST-GT 0.1": (stgt.STGT(tau=tau, beta=0.1), "exponential", ()),
        "ST-GT 0.25, v": (relaxed, "exponential", MOMENTS[1:]),
        "ST-GT 0.25, m and v": (relaxed, "exponential", MOMENTS),
        "oracle": (stgt.STGT(tau=tau), "complete", ()),  # c_i is ∇f − ∇f_i at the round's start, from new batches
        "updates 1": (OfUpdates(tau=tau, beta=1.0), "complete", ()),
        "updates 0.25": (OfUpdates(tau=tau), "complete", ()),
        "updates 0.25, v": (OfUpdates(tau=tau), "complete", MOMENTS[1:]),
    }


def everybody(vector: Tensor) -> Tensor:
    """The vectors of all nodes, one row each."""
    rows = [torch.empty_like(vector) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, vector.contiguous())
    return torch.stack(rows)


def average_state(base: torch.optim.Optimizer, names: tuple[str, ...]) -> float:
    """Replaces these parts of AdamW's state by their means over nodes; returns the bytes of a ring all-reduce."""
    nodes, sent = dist.get_world_size(), 0.0
    for name in names:
        parts = [state[name] for state in base.state.values()]
        flat = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(flat)
        for part, mean in zip(parts, (flat / nodes).split([part.numel() for part in parts]), strict=True):
            part.copy_(mean.view_as(part))
        sent += 2 * (nodes - 1) / nodes * flat.nbytes
    return sent


def gradients_at_mean(opt: DistributedOptimizer, model: LanguageModel, batches: list[Tensor]) -> Tensor:
    """This node's gradients at the mean model, clipped as in training, one row per batch."""
    (bucket,), found = opt.buckets, []
    with opt.averaged():
        for batch in batches:
            model.zero_grad()
            model.loss(batch).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            found.append(torch.cat([slot.gradient() for slot in bucket.slots]))
    model.zero_grad()
    return torch.stack(found)


def look_at_gradients(opt: DistributedOptimizer, model: LanguageModel, batches: list[Tensor]) -> dict[str, float]:
    """Means over nodes, at the mean model, of the gradients that training uses, which are clipped.

    The squared norms are corrected for the noise of the estimates. c does not depend on these batches.
    """
    bucket, nodes = opt.buckets[0], dist.get_world_size()
    gradients = gradients_at_mean(opt, model, batches)
    own = gradients.mean(dim=0)
    variance = (gradients - own).square().sum() / (len(batches) - 1)
    variances, others = everybody(variance), everybody(own)
    lacking = others.mean(dim=0) - own  # ∇f − ∇f_i, the target of c_i
    rank = dist.get_rank()
    weights = torch.full((nodes,), 1 / nodes)
    weights[rank] -= 1
    apart = lacking.square().sum() - (weights.square() * variances).sum() / len(batches)
    c = bucket.state.get("c", torch.zeros(bucket.size))
    if isinstance(opt.algorithm, OfUpdates):
        c = torch.zeros(bucket.size)  # it has another meaning here
    together, size = torch.dot(c, lacking), c.square().sum()
    mean = everybody(torch.stack([variance, apart, size, together])).mean(dim=0)
    variance, apart, size, together = mean.tolist()
    common = others.mean(dim=0).square().sum().item() - variances.mean().item() / len(batches) / nodes
    return {
        "noise": variance,
        "common": common,
        "apart": apart,
        "c": size,
        "error": (size - 2 * together + apart) / apart,
        "cos": together / max(size * apart, 1e-30) ** 0.5,
    }


def look_at_states(base: torch.optim.Optimizer, way: Tensor) -> dict[str, float]:
    """The norm of the nodes' mean change relative to their own changes, and the differences of AdamW's √v."""
    ways = everybody(way)
    found = {"way": (ways.mean(dim=0).square().sum() / ways.square().sum(dim=1).mean()).sqrt().item()}
    states = list(base.state.values())
    if states and "exp_avg_sq" in states[0]:
        roots = everybody(torch.cat([state["exp_avg_sq"].flatten() for state in states])).sqrt() + 1e-8
        found["v"] = (roots.amax(dim=0) / roots.amin(dim=0)).median().item()
    return found


def train(name: str, asked: argparse.Namespace, lr: float, seed: int, mine: Tensor, held: Tensor) -> None:
    algorithm, graph, averaged = variants(asked.tau)[name]
    torch.manual_seed(seed)
    model = LanguageModel()
    base = INNER[asked.inner](model.parameters(), lr=lr)
    opt = DistributedOptimizer(base, algorithm, graph, model=model)
    scheduler = warm_up_and_cosine(opt, asked.steps)
    sampler = ClockSampler(len(mine), BATCH, seed=seed)
    looked_at = held[:: max(1, len(held) // 128)][:128]
    bucket, rounds = opt.buckets[0], asked.steps // asked.tau
    looks = {max(1, rounds * part // 30) for part in (3, 10, 20, 30)}
    start, way, before, sent = bucket.x.clone(), bucket.x.clone(), 0.0, 0.0

    @torch.no_grad()
    def held_out_loss() -> float:
        return model.loss(looked_at).item()

    for step in range(asked.steps):
        opt.zero_grad()
        model.loss(mine[sampler.at(step)]).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        if (
            isinstance(algorithm, OfUpdates) and before
        ):  # c is from the previous round, which may have had other stepsizes
            bucket.x.sub_(bucket.state["c"], alpha=opt.param_groups[0]["lr"] / before)
        if opt.taken == asked.tau - 1:  # all but the last step, after which the models are mixed
            way, before = start - bucket.x, asked.tau * opt.param_groups[0]["lr"]
        opt.step()
        scheduler.step()
        if opt.taken == 0:
            sent += average_state(base, averaged)
            if name == "oracle":
                seen = asked.steps + opt.round * BATCHES
                own = gradients_at_mean(opt, model, [mine[sampler.at(seen + k)] for k in range(BATCHES)]).mean(dim=0)
                bucket.state["c"].copy_(everybody(own).mean(dim=0) - own)
            start = bucket.x.clone()
            if opt.round in looks:
                found = look_at_states(base, way)
                if asked.gradients:
                    future = [mine[sampler.at(asked.steps + k)] for k in range(BATCHES)]
                    found |= look_at_gradients(opt, model, future)
                loss = opt.evaluate(held_out_loss)["averaged"]
                bytes_sent = everybody(torch.tensor([opt.metrics()["bytes_sent"] + sent])).mean().item()
                if dist.get_rank() == 0:
                    numbers = "  ".join(f"{key} {value:.3g}" for key, value in found.items())
                    print(
                        f"{seed} {lr:g} {name:20} {step + 1:4} loss {loss:.3f} MB {bytes_sent / 1e6:.1f}  {numbers}",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inner", choices=INNER, default="adamw")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--tau", type=int, default=20)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--variants", nargs="+", choices=variants(1), default=["ST-GT", "ST-GT 0.25", "ST-GT 0.1"])
    parser.add_argument("--gradients", action="store_true", help="measure the gradients too, and c")
    asked = parser.parse_args()
    rank = init("gloo")
    _, mine, held = share(rank, dist.get_world_size())
    for seed in asked.seed:
        for name in asked.variants:
            train(name, asked, asked.lr or RATES[asked.inner], seed, mine, held)


if __name__ == "__main__":
    main()
