"""The language of the autoscaler: frozen values that every other part speaks.

Does: define words and check their own consistency. Does not: any I/O, any clock, any randomness.
Invariant: nothing in here imports anything of this project outside `autoscaler.domain`.
"""
