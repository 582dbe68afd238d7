"""The soak's processes: what each of them has said in its log, what it holds open, and what none may leave behind."""

import json
import os
import signal
import time
from pathlib import Path

from nodes import Node

PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(Node):
    """A node of the soak, whose log is read as it grows."""

    def __init__(self, forker, folder, environment, script, *arguments):
        super().__init__(forker, folder, environment, script, *arguments)
        self.name, self.born = environment["STGT_NODE"], time.time()
        self.orders = folder / f"orders-{self.number}"
        self.id, self.members, self.round, self.epoch = "", (), 0, 0
        self.moved = time.time()  # when it last said that it goes on
        self.said: dict[str, list[dict]] = {}
        self.logged: list[tuple[float, str]] = []
        self.samples: list[dict] = []  # what it held open
        self.stopped_until = self.busy_until = 0.0
        self.ends_with: set[int] = set()  # the exit codes that were ordered
        self.protected, self.policy = False, "skip"
        self.over = False  # has its end been noticed?
        self._read, self._rest = 0, ""

    @property
    def running(self) -> bool:
        return self.poll() is None

    @property
    def a_member(self) -> bool:
        return self.running and self.id != "" and self.id in self.members

    @property
    def well(self) -> bool:
        """A member to which nothing happens now."""
        return self.a_member and not self.ends_with and time.time() > self.busy_until

    def follow(self) -> None:
        """Reads what is new in its log."""
        if not self.log.exists():
            return
        with self.log.open() as file:
            file.seek(self._read)
            text = self._rest + file.read()
            self._read = file.tell()
        *lines, self._rest = text.split("\n")
        for line in lines:
            if line.startswith("@"):
                self._take(json.loads(line[1:]))
            else:
                first, _, words = line.partition(" ")
                if first.replace(".", "", 1).isdigit():
                    self.logged.append((float(first), words))

    def _take(self, line: dict) -> None:
        self.said.setdefault(line["what"], []).append(line)
        if line["what"] == "begin":
            self.id = line["id"]
        if line["what"] in ("begin", "status", "end"):
            self.members, self.epoch = tuple(line["members"]), line["epoch"]
            if line["round"] > self.round:
                self.round, self.moved = line["round"], line["time"]
            if line["what"] == "status" and len(self.said["status"]) > 50:
                del self.said["status"][:-20]

    def order(self, what: str, **more) -> None:
        """Tells it to make a fault of its own."""
        new = self.orders.with_suffix(".new")
        new.write_text(json.dumps({"what": what} | more))
        new.replace(self.orders)

    def send(self, sign: int) -> None:
        if self.running:
            os.kill(self.number, sign)

    def sample(self) -> None:
        """How much memory, how many files and sockets, how many threads it has."""
        place = Path("/proc", str(self.number))
        try:
            resident = int((place / "statm").read_text().split()[1]) * PAGE / 2**20
            opened, threads = len(os.listdir(place / "fd")), len(os.listdir(place / "task"))
        except (OSError, IndexError):
            return
        self.samples.append(
            {"time": time.time(), "members": len(self.members), "MiB": resident, "files": opened, "threads": threads}
        )

    def stacks(self) -> str:
        """The end of its log, with the stacks of all of its threads."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGUSR1)
        time.sleep(0.5)
        return f"---- {self.log.name}, process {self.number}, exit code {self.poll()}\n" + "\n".join(
            line for line in self.lines[-150:] if not line.startswith("@status")
        )


def orphans(mark: str) -> list[int]:
    """Processes in whose environment there is a mark."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            pass
    return found
