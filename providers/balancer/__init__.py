"""What spreads the requests: each module is one `Balancer`."""
