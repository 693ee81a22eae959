"""What MLflow runs to load a served model: a model from code, the classifier behind MLflow's interface.

MLflow copies this file and, as `tenfold_served`, the few files that it needs (`packaging.py`) into the model's folder
and runs them there. They load anywhere: neither torch nor this project has to be installed.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import mlflow.models
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from tenfold_served.serving.classifier import Classifier  # type: ignore[import-not-found]
from tenfold_served.serving.pixels import Refused  # type: ignore[import-not-found]
from tenfold_served.serving.protocol import respond  # type: ignore[import-not-found]


class ServedModel(PythonModel):
    """One classifier serves all threads of the server."""

    # MLflow would check only that the input is a list, and answer with the whole request if not.
    _skip_type_hint_validation = True

    def load_context(self, context: PythonModelContext) -> None:
        """Open the artifact `onnx`."""
        self.classifier = Classifier(context.artifacts["onnx"])
        if server := sys.modules.get("mlflow.pyfunc.scoring_server"):
            self._take_over(server)

    def predict(  # type: ignore[override]  # MLflow allows leaving out `context`
        self, model_input: list[Any], params: dict[str, Any] | None = None
    ) -> list[Any]:
        """Classify images: see `Classifier.answer`.

        Raises:
            MlflowException: the request is not as described there.
        """
        try:
            answers: list[Any] = self.classifier.answer(model_input, params)
        except Refused as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from None
        return answers

    predict._is_pyfunc = True  # type: ignore[attr-defined]  # "checks its input": else MLflow warns when it saves

    def _take_over(self, server: ModuleType) -> None:
        """Let MLflow's server hand the requests to this model over as they came.

        What it would do with them first takes longer than the network, answers in megabytes (it puts the request before
        each message), ignores params that are unknown, and fails with status 500 on some.
        """
        others = server.invocations

        def invocations(data: bytes, content_type: str | None, model: Any, schema: Any) -> Any:
            if model.unwrap_python_model() is not self:
                return others(data, content_type, model, schema)
            status, body = respond(self.classifier, data, content_type)
            return server.InvocationsResponse(body, int(status), "application/json")

        server.invocations = invocations  # type: ignore[attr-defined]


mlflow.models.set_model(ServedModel())
