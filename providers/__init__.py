"""Thin translations between a port and one vendor, one file each, found by entry point, never imported by name."""
