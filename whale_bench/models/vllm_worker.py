"""What our engine adds to vLLM's worker: a reload that also reaches a tied output layer.

    EngineArgs(..., worker_extension_cls="whale_bench.models.vllm_worker.ReloadWorker")
    engine.collective_rpc("whale_reload", args=("/models/newer",))

On a CPU vLLM computes with packed copies of its matrices. `reload_weights` packs again every layer for
which it reads a tensor. An output layer that shares its tensor with the input embedding reads none:
its parameter is new then and its packed copy still old, so that answers come from a mixture of two
models. Seen in vLLM 0.31.0; a test compares a reloaded engine with transformers on the new folder.

Not covered: packed layers of quantised weights, and tied layers that are not linear.
"""

from typing import Any


class ReloadWorker:
    """Mixed into vLLM's worker class by vLLM."""

    model_runner: Any

    def whale_reload(self, folder: str) -> None:
        """Loads the weights of `folder` in place."""
        self.model_runner.reload_weights(weights_path=folder)
        layers = [layer for layer in self.model_runner.get_model().modules() if hasattr(layer, "cpu_linear")]
        owners: dict[int, Any] = {}
        for layer in layers:
            weight = getattr(layer, "weight", None)
            if weight is None or not weight.numel():
                continue  # the tensor was dropped for its packed copy, so it is nobody else's
            if owners.setdefault(weight.data_ptr(), layer) is not layer:
                layer.quant_method.process_weights_after_loading(layer)
