"""Tells the service manager how far the daemon is: systemd's `Type=notify`, one datagram a word.

Does: send to the socket that NOTIFY_SOCKET names. Does not: know what is told, or need a library (sd_notify(3)).
Invariant: without NOTIFY_SOCKET it does nothing; a service manager that does not listen never stops the daemon.
"""

import os
import socket

#: All pools run and the admin API's port is ours.
READY = "READY=1"
#: The daemon ends: no action starts any more.
STOPPING = "STOPPING=1"


def tell(state: str) -> str:
    """Send one state; returns why it could not be sent, empty when it was or nobody asked."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return ""
    address = f"\0{path[1:]}" if path.startswith("@") else path  # an abstract name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(1.0)
            sender.sendto(state.encode(), address)
    except OSError as error:
        return f"the service manager at {path} cannot be told {state}: {error.strerror or error}"
    return ""
