"""Whether the packages of the `lab` extra are there.

Does: say in one line what is missing and how to install it. Does not: install, or import anything else of the lab.
Invariant: nothing outside the lab needs these packages.
"""

from __future__ import annotations

import importlib
from typing import Final

from autoscaler.domain.faults import ConfigError

#: What the world itself needs; pictures and searches need more and say so themselves.
NEEDED: Final = ("numpy", "numba")


def require_lab(packages: tuple[str, ...] = NEEDED) -> None:
    """Raise ConfigError with one line when a package of the `lab` extra is missing."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            allowed = "allowed: an installation with the extra 'lab' (pip install 'llm-pool-autoscaler[lab]')"
            raise ConfigError([f"lab: the package {package} is not installed; {allowed}"]) from None
