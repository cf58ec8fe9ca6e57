"""The shells with I/O around the pure core: they feed `decide` and obey it, and decide nothing."""
