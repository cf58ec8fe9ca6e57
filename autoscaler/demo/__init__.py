"""The embedded default: a stand-in model server, recorded traffic, a live view."""
