"""What a user writes, checked: one YAML file and the environment become frozen values, or a list of all mistakes.

Does: read, check, lint and describe the configuration. Does not: build adapters (autoscaler.wiring does).
Invariant: a Config that exists is complete and consistent; a secret is never in a message.
"""
