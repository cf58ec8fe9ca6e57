"""The policy study: policies on public traffic, side by side, as docs/policy-study.md tells it.

Does: run it in pieces that are kept, and make the document's tables out of what was kept. Does not: ship a trace.
Invariant: a table holds nothing that the results file does not.
"""
