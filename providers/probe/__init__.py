"""How a replica is asked whether it is ready: each module is one `Probe`."""
