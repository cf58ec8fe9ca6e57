"""Where the load is read: each module is one `Telemetry`."""
