"""The pure core: `decide` and its parts. No clock, socket, random number or log."""
