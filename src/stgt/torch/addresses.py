"""Addresses of this machine: the one at which another host reaches it, and stores that listen on one address only."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

LOOPBACK = "127.0.0.1"


def towards(url: str) -> str:
    """This machine's address as seen from the host of a URL."""
    place = urlsplit(url if "//" in url else f"//{url}")
    try:
        family, _, _, _, address = socket.getaddrinfo(place.hostname, place.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of UDP: nothing is sent
            return probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the lighthouse {url!r} cannot be looked up ({error}): give it as http://host:29510."
        ) from None


def interface_of(address: str) -> str:
    """The name of the network interface with an address; "" if it cannot be determined."""
    with suppress(ImportError, OSError):
        import fcntl

        get_address = 0x8915  # SIOCGIFADDR of Linux
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                with suppress(OSError):
                    found = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
                    if socket.inet_ntoa(found[20:24]) == address:
                        return name
    return ""


def open_store(host: str, wait: timedelta, port: int = 0) -> TCPStore:
    """A store in this process that can be reached at one address of this machine only.

    A TCPStore that opens its own socket listens on all addresses. So this function opens the socket.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.listen(1024)
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, timeout=wait, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def reach_store(address: str, wait: timedelta) -> TCPStore:
    """The store of another process at an address such as "10.0.0.1:4000"."""
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=wait)
