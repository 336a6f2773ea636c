"""Ports for servers that this machine starts."""

from __future__ import annotations

import random
import socket

RANGE = range(20_000, 32_000)  # below those that the kernel gives to outgoing connections


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now and that no outgoing connection takes before a server, which may
    need half a minute to start, binds them, or while it is down and its port must wait for it. All are held at once, so
    that they differ."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", random.choice(RANGE)))
                sockets.append(one)
            except OSError:
                one.close()
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
