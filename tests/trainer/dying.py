"""resumable.py FOLDER, but rank 1 is killed in the middle of its first checkpoint."""

import os
import signal
from pathlib import Path

import resumable

from stgt._internal import container


def main(folder: str) -> None:
    if os.environ["RANK"] == "1":
        whole = container.write_atomically

        def half(path, fill, **options):
            def killed(file):
                fill(file)
                os.truncate(file, file.stat().st_size // 2)
                while not (Path(folder) / "checkpoints" / "step-0000000006" / "node-0000.safetensors").exists():
                    pass
                os.kill(os.getpid(), signal.SIGKILL)

            return whole(path, killed, **options)

        container.write_atomically = half
    resumable.main(folder, "4", "20")
