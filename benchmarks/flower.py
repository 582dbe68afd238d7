"""The bytes that a client of ScaffoldPlus sends and receives per round on its connections, relative to the model's.

python benchmarks/flower.py [parameters]
"""

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests" / "flower"
sys.path.insert(0, str(TESTS))
from deployment import Deployment, Proxy, wait_for  # noqa: E402

ROUNDS, CLIENTS = 5, 2
AIMS = {"up": 1.02, "down": 2.05}


def measure(parameters: int, folder: Path) -> None:
    made = Deployment(folder)
    proxy = Proxy(made.address)
    counts = []
    try:
        signed = made.sign(TESTS / "deployed_app")
        made.let_in(*range(CLIENTS))
        made.start_node(0, CLIENTS, proxy.address)
        made.start_node(1, CLIENTS)
        config = f"clients={CLIENTS} sampled={CLIENTS} rounds={ROUNDS} wide={parameters} timeout=120.0 out='{folder}'"
        app = made.run(signed, config)
        for number in range(ROUNDS + 1):
            path = folder / f"round-{number}.txt"
            wait_for(lambda path=path: path.exists() or app.poll() is not None, 300, f"no round {number}")
            if not path.exists():
                raise SystemExit(made.log("app"))
            counts.append({"up": proxy.up, "down": proxy.down})
        app.wait(60)
    finally:
        made.close()
        proxy.close()
    model = 4 * parameters
    print(f"{parameters:,} parameters, {model / 1e6:.1f} MB; before round 1: {counts[0]}")
    for number, (before, after) in enumerate(pairwise(counts), start=1):
        ratios = {way: (after[way] - before[way]) / model for way in AIMS}
        note = " (no c yet; the app itself is downloaded)" if number == 1 else ""
        print(f"round {number}: uplink {ratios['up']:.4f} models, downlink {ratios['down']:.4f} models{note}")
    later = {way: (counts[-1][way] - counts[1][way]) / (ROUNDS - 1) / model for way in AIMS}
    for way, aim in AIMS.items():
        print(f"{way}link per client and round: {later[way]:.4f} models (target: at most {aim})")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, Path(place))
