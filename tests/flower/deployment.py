"""A SuperLink and SuperNodes on this machine, started as examples/flower/deploy.sh says."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples" / "flower" / "deploy.sh"
WARM = Path(__file__).with_name("warm.py")
MISSING = [tool for tool in ("openssl", "bash") if shutil.which(tool) is None]
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
    "NO_COLOR": "1",
    "CA_PASSPHRASE": "of the tests",
    "KEY_PASSPHRASE": "",
}


PORTS = count(10_000 + os.getpid() % 8_000)


def free_port() -> int:
    """Below those that the system gives to whoever asks for any: no connection has taken it when the process does."""
    while True:
        port = next(PORTS)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def wait_for(happened, seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, f"after {seconds:g} s: {what}"
        time.sleep(0.1)


class Deployment:
    """Processes of one federation, each of its own group, so that all that belongs to one can be ended with it.

    One folder stands for those of all hosts.
    """

    def __init__(self, folder: Path, **variables: str):
        self.folder, self.address, self.public = folder, f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.processes: dict[str, subprocess.Popen] = {}
        path = f"{folder}{os.pathsep}{ENVIRONMENT['PATH']}"
        self.environment = {**ENVIRONMENT, "PATH": path, "HUB_PORT": str(free_port()), **variables}
        self.call("certify")
        warm = folder / "warm.socket"
        self.start("warm", sys.executable, WARM, warm)
        for name in ("flower-superexec", "flwr-serverapp", "flwr-clientapp"):
            shim = folder / name
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {WARM} {warm} {name} "$@"\n')
            shim.chmod(0o755)
        try:
            self.start_superlink()
        except AssertionError:
            self.close()
            raise

    def call(self, word: str, *arguments) -> str:
        """What a word of the recipe printed when it had done its work."""
        command = [RECIPE, word, self.folder, *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *command) -> subprocess.Popen:
        environment = {**self.environment, "RUNTIME_PORT": str(free_port())}
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(
                [*map(str, command)], env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self.processes[name]

    def start_superlink(self) -> None:
        self.start("superlink", RECIPE, "superlink", self.folder, self.address)
        wait_for(lambda: "Uvicorn running" in self.log("superlink"), 60, "no SuperLink")

    def start_proxy(self) -> None:
        """At `public`, for clients."""
        self.start("proxy", RECIPE, "proxy", self.folder, self.public, self.address)

    def let_in(self, *nodes: int) -> None:
        """Makes the keys of some SuperNodes, and registers them."""
        for node in nodes:
            self.call("key", node)
        self.call("register", self.address, *nodes)

    def start_node(self, node: int, nodes: int, address: str | None = None) -> subprocess.Popen:
        return self.start(f"node-{node}", RECIPE, "supernode", self.folder, address or self.address, node, nodes)

    def sign(self, app: Path) -> str:
        """Has all clients trust what is signed here. What `run` calls the signed app."""
        signed = self.call("sign", app).strip()
        self.call("trust", self.folder / "signer.pub")
        return signed

    def run(self, app: Path | str, config: str) -> subprocess.Popen:
        return self.start("app", RECIPE, "run", self.folder, self.address, app, "--run-config", config)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """-9 to a process and all that it started, as when its host loses power."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in reversed(list(self.processes)):
            self.kill(name)


class Proxy:
    """Passes connections on to an address and counts the bytes of each way."""

    def __init__(self, address: str):
        host, port = address.rsplit(":", 1)
        self.target, self.up, self.down = (host, int(port)), 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            for source, sink, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass_on, args=(source, sink, way), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while content := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(content))  # one SuperNode: few connections at a time
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
