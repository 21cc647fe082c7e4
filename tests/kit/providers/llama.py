"""Owns a real inference server for tests: llama.cpp's own, in a process of its own, with a tiny random model.

    # conftest.py
    from tests.kit.providers.llama import llama as llama  # a session-scoped fixture; xdist workers have one each

    async def test_something(llama: Llama):
        model = OpenAIModel("tiny", base_url=llama.base_url, api_key="any")
        ...
        llama.busy()            # how many of its slots generate at this moment
        llama.wait_idle(1.0)    # seconds until none did, or None
        llama.read(), llama.written()   # tokens so far: no more of them, and no request came

It speaks Chat Completions (`base_url`) and Anthropic's Messages (`url`), without a network and without a download: the
model is written once into `.cache/` (1 MB, a quarter of a second) and talks nonsense, word by word, for as long as it
is allowed to: hundreds of tokens per second, 30,000 at most. It reads a prompt to its end before it looks whether the
client is still there. Nothing of this needs Safepoint.
"""

import json
import os
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Llama", "llama"]

TEMPLATES = Path(__file__).parent / "templates"
CACHE = Path(__file__).parents[2] / ".cache"
VERSION = 1  # of the model below: a new one gets a new file
START_SECONDS = 30.0
SLOTS = 4
CONTEXT = 32_768  # tokens per slot

SYLLABLES = [consonant + vowel for consonant in "bdklmnrst" for vowel in "aeiou"]
EMBEDDING, FORWARD, LAYERS, HEADS = 64, 128, 2, 4


class Llama:
    """The server while it runs. `with Llama() as llama:`

    Args:
        template: The file of a chat template in `templates/`, with the rules of a model's own one. By default it has
            one that accepts everything.
    """

    def __init__(self, template: str = "") -> None:
        path = model_file()
        arguments = [str(path), *([str(TEMPLATES / template)] if template else [])]
        # It ends with its input: also a test run that is killed leaves no server behind.
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        try:
            self.url = self._address()
        except BaseException:
            self.close()
            raise

    @property
    def base_url(self) -> str:
        """What a client of the Chat Completions API is given."""
        return f"{self.url}/v1"

    def slots(self) -> list[dict[str, Any]]:
        """What each slot does: `is_processing`, and with it the number of the task."""
        slots: list[dict[str, Any]] = json.loads(self._get("/slots"))
        return slots

    def busy(self) -> int:
        """How many slots generate."""
        return sum(slot["is_processing"] for slot in self.slots())

    def read(self) -> int:
        """How many tokens of prompts it has read so far."""
        counted = self._metrics()
        return counted["prompt_tokens_total"] + counted["prompt_tokens_cached_total"]

    def written(self) -> int:
        """How many tokens of answers it has written so far."""
        return self._metrics()["tokens_predicted_total"]

    def wait_idle(self, seconds: float) -> float | None:
        """Seconds until no slot was generating; None if one still does after `seconds`."""
        return self._wait(lambda: not self.busy(), seconds)

    def wait_busy(self, seconds: float, slots: int = 1) -> float | None:
        """Seconds until so many slots were generating; None if they are not after `seconds`."""
        return self._wait(lambda: self.busy() >= slots, seconds)

    def close(self) -> None:
        """Kill it, by its pid, and wait for it."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> "Llama":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, there: Any, seconds: float) -> float | None:
        began = time.monotonic()
        while not there():
            if time.monotonic() - began > seconds:
                return None
            time.sleep(0.002)  # real time: another process is watched
        return time.monotonic() - began

    def _metrics(self) -> dict[str, int]:
        lines = (line.split() for line in self._get("/metrics").decode().splitlines())
        counters = (line for line in lines if line[0].startswith("llamacpp:") and line[0].endswith("_total"))
        return {name.removeprefix("llamacpp:"): int(float(value)) for name, value in counters}

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            data: bytes = answer.read()
        return data

    def _address(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline().decode().strip() if ready else ""
        if not line.startswith("http://127.0.0.1:"):
            raise RuntimeError(f"the inference server did not start within {START_SECONDS} s: it said {line!r}")
        return line


@pytest.fixture(scope="session")
def llama() -> Iterator[Llama]:
    """One server for all tests of this process."""
    with Llama() as server:
        yield server


def model_file() -> Path:
    """The model, written on first use. Two processes may do so at once: each moves a whole file into its place."""
    path = CACHE / f"tiny-{VERSION}.gguf"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        _write(partial)
        partial.replace(path)
    return path


def _write(path: Path) -> None:
    import gguf
    import numpy as np

    random = np.random.default_rng(7)
    control = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"\u2581{first}{second}" for first in SYLLABLES for second in SYLLABLES][:1000]
    tokens = [*control, *bytes_, *words]

    def weights(*shape: int, scale: float) -> Any:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    kinds = gguf.TokenType
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * len(bytes_), *[kinds.NORMAL] * len(words)]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    # Only words can win: with the rows of all others at zero the text is printable, and never ends by itself.
    output = weights(len(tokens), EMBEDDING, scale=0.6)
    output[: len(control) + len(bytes_)] = 0
    writer.add_tensor("token_embd.weight", weights(len(tokens), EMBEDDING, scale=1.0))
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(EMBEDDING, np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(EMBEDDING, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(EMBEDDING, EMBEDDING, scale=0.2))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(FORWARD, EMBEDDING, scale=0.2))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", weights(EMBEDDING, FORWARD, scale=0.2))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _serve(path: str, template: str = "") -> None:
    """The server process: says where it listens, and lives until its input ends."""
    import xllamacpp  # type: ignore[import-untyped,import-not-found,unused-ignore]  # it has no stubs

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 2 * SLOTS + 4  # a thread per open stream, and some to ask after the slots
    params.cache_ram_mib = 0
    params.fit_params = params.warmup = params.ui = False
    params.endpoint_metrics = True
    params.verbosity = 0
    if template:
        params.chat_template, params.use_jinja = Path(template).read_text(encoding="utf-8"), True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # its C++ threads may be generating; nothing of theirs is worth waiting for


if __name__ == "__main__":
    _serve(*sys.argv[1:])
