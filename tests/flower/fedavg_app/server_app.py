import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    run = context.run_config
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_train=run["fraction-train"], fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=run["num-server-rounds"],
        train_config=ConfigRecord({"lr": run["learning-rate"]}),
    )
    torch.save(result.arrays.to_torch_state_dict(), run["out"])
