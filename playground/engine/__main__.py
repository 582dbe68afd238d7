"""`python -m playground.engine` prints default.json: the settings with which the page opens, and their result."""

import json

from playground.engine.result import simulate
from playground.engine.settings import stories

settings = stories()[0]["settings"]
print(json.dumps({"settings": settings, "result": simulate(settings)}, allow_nan=False, separators=(",", ":")))
