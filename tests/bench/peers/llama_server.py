"""llama.cpp's own server, its speculation included, through the package xllamacpp; see ``serving`` for how it runs."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import Any

NAME = "llama-server"
PACKAGE = "xllamacpp"
# settings to try, of which the fastest of each group counts; the last of each kind of n-gram are the defaults
GROUPS = {
    "plain": [("none", {})],
    "draft": [
        ("draft", {"n_max": n_max, "p_min": p_min}) for n_max in (2, 3, 4, 8, 16) for p_min in (0.0, 0.5, 0.75, 0.9)
    ],
    "n-gram": [
        *(("ngram-simple", {"size_n": size_n, "size_m": size_m}) for size_n in (2, 3, 12) for size_m in (4, 8, 48)),
        *(("ngram-map-k", {"size_n": size_n, "size_m": size_m}) for size_n, size_m in ((3, 8), (12, 48))),
        *(("ngram-map-k4v", {"size_n": size_n, "size_m": size_m}) for size_n, size_m in ((3, 8), (12, 48))),
        *(
            ("ngram-mod", {"n_match": n_match, "n_min": n_min, "n_max": n_max})
            for n_match, n_min, n_max in ((4, 1, 8), (12, 4, 32), (24, 48, 64))
        ),
        ("ngram-cache", {}),
    ],
}


class LlamaServer:
    """The server of one package, one model at a time.

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
        self._server: Any = None
        self._temperature = 0.0
        self.version = str(self._package.__version__)
        self.build = str(self._package.get_system_info()).strip()

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
        """Starts a server, in place of the one before.

        The draft model's cache has llama.cpp's own type, as in slipstream; weights lie as this build likes.
        """
        self._server, self._temperature = None, temperature
        x = self._package
        params = x.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel = model, n_ctx, 1
        params.cache_type_k = params.cache_type_v = x.ggml_type[f"GGML_TYPE_{kv.upper()}"]
        state = "AUTO" if flash is None else "ENABLED" if flash else "DISABLED"
        params.flash_attn_type = x.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{state}"]
        params.fit_params = False  # as it was asked for, or not at all
        params.cache_ram_mib = 0
        speculative = params.speculative
        draft = speculative.draft
        for cpu in (params.cpuparams, params.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch):
            cpu.n_threads = threads
        if drafter != "none":
            kind = "DRAFT_SIMPLE" if drafter == "draft" else drafter.upper().replace("-", "_")
            speculative.types = [x.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{kind}"]]
            if drafter == "draft":
                draft.mparams.path = draft_model
            part = draft if drafter == "draft" else getattr(speculative, kind.lower())
            for name, value in settings.items():
                getattr(part, name)  # an unknown name is refused
                setattr(part, name, value)
        self._server = x.Server(params)
        return {}

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Replies to a prompt, each token drawn at the temperature of ``open``."""
        began = perf_counter()
        reply = self._server.handle_completions(
            {"prompt": prompt, "max_tokens": tokens, "cache_prompt": False, **self._drawn()}
        )
        return timed(reply, perf_counter() - began)

    def _drawn(self) -> dict[str, Any]:
        if not self._temperature:
            return {"temperature": 0, "top_k": 1, "samplers": ["top_k"]}  # the shortest chain that takes the best token
        chain = ["top_k", "top_p", "min_p", "temperature"]
        return {
            "temperature": self._temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1, "samplers": chain
        }  # fmt: skip


def timed(reply: dict[str, Any], wall: float) -> dict[str, Any]:
    """Reads the server's own timings.

    Its clock starts once the first token is there, which the prompt's pass gave; so that one does not count.
    """
    if "timings" not in reply:
        raise RuntimeError(reply.get("error", reply))
    timings = reply["timings"]
    return {
        "tokens": timings["predicted_n"] - 1,
        "seconds": timings["predicted_ms"] / 1e3,
        "wall": wall,
        "text": reply["choices"][0]["text"],
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
    }


engine = LlamaServer
