"""Hosts of one machine: network namespaces, each with a cable into a switch from which it can be unplugged."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from itertools import count

NUMBERS = count()


class NoHostsError(Exception):
    """Why they cannot be made here."""


class Hosts:
    """Namespaces that can reach one another, each by its cable; behind a second interface, `spare`, nobody is."""

    def __init__(self, count: int):
        self.prefix = f"stgt-{os.getpid()}-{next(NUMBERS)}"
        self.switch = f"{self.prefix}-switch"
        self.names = [f"{self.prefix}-{i}" for i in range(count)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        self.cables = [f"cable{i}" for i in range(count)]

    def make(self) -> None:
        if shutil.which("ip") is None:
            raise NoHostsError("there is no `ip` command (iproute2) to make network namespaces with")
        for name in (self.switch, *self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        ip("-n", self.switch, "addr", "add", "10.77.0.254/24", "dev", "bridge")
        for i, (name, cable, address) in enumerate(zip(self.names, self.cables, self.addresses, strict=True)):
            ip("-n", self.switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", cable, "netns", name)
            ip("-n", self.switch, "link", "set", f"port{i}", "up", "master", "bridge")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            if i:  # the first says at once that there is no way to another's spare one, the others lose what they send
                ip("-n", name, "route", "add", "10.1.0.0/16", "via", "10.77.0.254")
            ip("-n", name, "link", "add", "spare", "type", "veth", "peer", "name", "nobody")
            ip("-n", name, "addr", "add", f"10.1.{i}.1/24", "dev", "spare")
            ip("-n", name, "link", "set", "spare", "up")
            ip("-n", name, "link", "set", "nobody", "up")

    def unplug(self, host: int) -> None:
        """Nothing gets through any more, and nobody is told."""
        ip("-n", self.switch, "link", "set", f"port{host}", "nomaster")

    def plug(self, host: int) -> None:
        """Its cable is in the switch again."""
        ip("-n", self.switch, "link", "set", f"port{host}", "master", "bridge")

    def part(self, *hosts: int) -> None:
        """These reach the others, but not one another."""
        for host in hosts:
            ip("-n", self.switch, "link", "set", f"port{host}", "type", "bridge_slave", "isolated", "on")

    def remove(self) -> None:
        for name in (self.switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=30)


@contextmanager
def hosts(count: int):
    made = Hosts(count)
    try:
        made.make()
        yield made
    finally:
        if shutil.which("ip") is not None:
            made.remove()


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise NoHostsError(f"network namespaces cannot be made here: `ip {' '.join(arguments)}`: {done.stderr.strip()}")
