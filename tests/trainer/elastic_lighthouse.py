"""torchft's lighthouse as a process of its own, with the time limits of `stgt lighthouse`."""

import time

import torchft.coordination
import torchft.process_group

from stgt.torch.lighthouse import options


def main(address):
    server = torchft.coordination.LighthouseServer(bind=address, **options())
    print(server.address(), flush=True)
    while True:
        time.sleep(60)
