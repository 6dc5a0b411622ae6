"""The network of all-MiniLM-L6-v2, computed with numpy.

Vaswani and others 2017 describe the layers, Devlin and others 2019 the model (BERT), Reimers and Gurevych 2019 how a
text becomes one vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

_BATCH = 16
"""Texts that are computed at once. They have similar lengths, so that little of a batch is padding."""


class MiniLM:
    """The weights of the model, and the network that they belong to. Raises whatever reading its files raises."""

    def __init__(self, folder: Path, config: Mapping[str, Any], limit: int) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._weights: dict[str, Floats] = load_file(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_length=limit)
        self._tokenizer.no_padding()
        self._heads: int = config["num_attention_heads"]
        self._layers: int = config["num_hidden_layers"]
        self._epsilon: float = config["layer_norm_eps"]

    def embed(self, texts: list[str]) -> list[list[float]]:
        """The mean of the last layer over the word pieces of each text, scaled to length 1."""
        pieces = [found.ids for found in self._tokenizer.encode_batch(texts)]
        vectors: list[list[float]] = [[]] * len(texts)
        order = sorted(range(len(texts)), key=lambda place: len(pieces[place]))
        for first in range(0, len(order), _BATCH):
            places = order[first : first + _BATCH]
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
