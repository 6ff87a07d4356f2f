"""llama-cpp-python's high-level API, prompt lookup included; see ``serving`` for how it runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.repack import weight_params

NAME = "llama-cpp-python"
PACKAGE = "llama_cpp"
# settings to try, of which the fastest of each group counts
GROUPS = {
    "plain": [("none", {})],
    "n-gram": [
        ("prompt-lookup", {"max_ngram_size": size, "num_pred_tokens": count}) for size in (2, 3) for count in (2, 5, 10)
    ],
}
_KV = {"f32": 0, "f16": 1, "q8_0": 8}  # ggml_type


class LlamaCppPython:
    """The class ``Llama`` with one model at a time.

    Attributes:
        version: The package's version.
        build: What its llama.cpp was built for.
    """

    def __init__(self) -> None:
        """Imports the package.

        Raises:
            ImportError: If it is not installed.
        """
        self._package = import_module(PACKAGE)
        self._low: Any = import_module(f"{PACKAGE}.llama_cpp")
        self._speculative = import_module(f"{PACKAGE}.llama_speculative")
        self._defaults = self._low.llama_model_default_params
        self._llama: Any = None
        self._temperature = 0.0
        self.version = str(self._package.__version__)
        self.build = self._low.llama_print_system_info().decode().strip()

    def open(
        self,
        model: str,
        draft_model: str | None,
        n_ctx: int,
        kv: str,
        flash: bool | None,
        threads: int,
        temperature: float,
        drafter: str,
        settings: dict[str, float],
    ) -> dict[str, Any]:
        """Loads a model, in place of the one before, its weights laid out as slipstream's are.

        It knows flash attention on or off; on where llama.cpp chooses.
        """
        self._temperature = temperature
        if self._llama:
            self._llama.close()
        self._low.llama_model_default_params = self._defaults
        weights = weight_params(read_header(Path(model)))
        self._low.llama_model_default_params = lambda: weights  # its class has no argument for it
        lookup = self._speculative.LlamaPromptLookupDecoding(**settings) if drafter != "none" else None
        self._llama = self._package.Llama(
            model,
            n_gpu_layers=-1,
            n_ctx=n_ctx,
            n_batch=n_ctx,  # with a draft it fails on prompts that are longer than a batch
            n_ubatch=512,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=flash is not False,
            type_k=_KV[kv],
            type_v=_KV[kv],
            draft_model=lookup,
            verbose=False,
        )
        return {}

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Replies to a prompt, each token drawn at the temperature of ``open``, timed from the first to the last."""
        llama, written, seen = self._llama, list[int](), list[float]()
        llama.reset()
        vocabulary = self._low.llama_model_get_vocab(llama.model)
        began = perf_counter()
        for token in llama.generate(prompt, **self._drawn()):
            seen.append(perf_counter())
            if self._low.llama_vocab_is_eog(vocabulary, token):
                break
            written.append(token)
            if len(written) == tokens:
                break
        return {
            "tokens": len(seen) - 1,
            "seconds": seen[-1] - seen[0],
            "wall": seen[-1] - began,
            "text": llama.detokenize(written, prev_tokens=prompt).decode("utf-8", "replace"),
            "drafted": None,  # it does not say
            "accepted": None,
        }

    def _drawn(self) -> dict[str, Any]:
        if not self._temperature:
            return {"temp": 0.0, "top_k": 1}
        return {"temp": self._temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


engine = LlamaCppPython
