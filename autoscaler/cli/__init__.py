"""The command line: reads arguments, calls the shells, prints. Holds no rule of its own."""
