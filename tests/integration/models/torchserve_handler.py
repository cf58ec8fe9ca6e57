"""A handler for TorchServe that takes a while to load and to answer. Runs in the server's own worker."""

import time
from typing import Any

_LOAD_S = 6.0
_ANSWER_S = 0.2


class Handler:
    """The entry point that the worker looks for."""

    def initialize(self, context: Any) -> None:
        """Load, slowly."""
        time.sleep(_LOAD_S)

    def handle(self, data: list[Any], context: Any) -> list[dict[str, str]]:
        """Answer each request of a batch."""
        time.sleep(_ANSWER_S)
        return [{"said": "a"} for _ in data]
