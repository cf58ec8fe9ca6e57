"""Thin translations between a port and one vendor, one file each.

Found by entry point, never imported by name. What several need stands in `providers._shared`.
"""
