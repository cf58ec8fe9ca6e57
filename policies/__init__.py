"""Opinions about the size of a pool, one file each: pure, found by entry point, never imported by name."""
