"""A model for Triton's Python backend that does as its parameters say.

`load_s`: how long it takes to load. `fails`: every inference raises. Runs in the server's own environment.
"""

import json
import time
from typing import Any

import triton_python_backend_utils as backend


class TritonPythonModel:
    """The name that the backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load, slowly."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        told = {key: value["string_value"] for key, value in parameters.items()}
        self.fails = told.get("fails") == "true"
        self.infer_s = float(told.get("infer_s", "0"))
        time.sleep(float(told.get("load_s", "0")))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with what it sent."""
        if self.fails:
            raise RuntimeError("this model cannot infer")
        time.sleep(self.infer_s)
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        """The same numbers back."""
        given = backend.get_input_tensor_by_name(request, "IN").as_numpy()
        return backend.InferenceResponse(output_tensors=[backend.Tensor("OUT", given)])
