"""One process of the test world: reads the name of a scenario, runs it with the others, answers; until told to stop.

Eight processes take long to start on two cores, so the tests share one world.
"""

import json
import sys
import traceback
import warnings

import scenarios
import scenarios_use
import torch
import torch.distributed as dist

from stgt.torch import init

torch.set_num_threads(1)
warnings.simplefilter("error")
init(timeout=60.0)
print("ready", flush=True)
for line in sys.stdin:
    name, arguments = json.loads(line)
    try:
        answer = {"result": getattr(scenarios if hasattr(scenarios, name) else scenarios_use, name)(**arguments)}
    except ValueError as error:
        answer = {"error": str(error)}
    except Exception:
        answer = {"crash": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
dist.destroy_process_group()
