"""The pure engine: decide() and its parts, a fold over values.

Does: reconcile, judge telemetry, compose opinions, stabilise, guard, plan, explain. Does not: any I/O, any clock.
Invariant: equal input gives equal output, whatever the order of replicas.
"""
