"""The policy lab: a policy tried on recorded traffic, in a simulated world, over the very `decide()` of the daemon.

Does: hold the world (workload, replicas, cloud, balancer, telemetry), the fast loop and what is made of its results.
Does not: touch a cloud, a socket or a real clock.
Invariant: same workload, settings and seed, same bytes.
"""
