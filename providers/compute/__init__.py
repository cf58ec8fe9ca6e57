"""Where machines come from: each module is one `Compute`."""
