"""The loop and its language: observe, decide, act.

Decides nothing by itself at import time and imports nothing heavy: `autoscaler --help` must stay quick.
"""

__version__ = "0.1.0"
