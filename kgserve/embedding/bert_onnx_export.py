"""Export of a BERT encoder to an ONNX file from its weights.

The graph maps ``input_ids`` and ``attention_mask`` (int64, batch x sequence) to ``last_hidden_state`` (float32, batch x
sequence x width). Inputs have a single segment, so its type embedding is added to the position embeddings. Pooling and
normalization are left to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ONNX_OPSET_VERSION = 20
ONNX_IR_VERSION = 9
"""Oldest versions that support the operators, for compatibility with older runtimes."""

BertWeights = Mapping[str, NDArray[np.float32]]


class BertArchitectureConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Layer parameters from a model's config.json."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    layer_norm_eps: float


def write_bert_onnx(path: Path, shape: BertArchitectureConfig, weights: BertWeights) -> None:
    """Write the graph of a BERT with an erf GELU, and its weights to a file next to it, named ``path`` and ``_data``.

    The runtime maps a file of weights into memory, and would copy weights in the graph. Raises KeyError naming a tensor
    missing in ``weights``.
    """
    graph = _GraphBuilder(shape, weights)
    hidden = graph.embeddings()
    mask = graph.mask()
    for layer in range(shape.num_hidden_layers):
        hidden = graph.layer(f"encoder.layer.{layer}", hidden, mask)
    onnx.save_model(
        graph.finished(hidden), path, save_as_external_data=True, location=f"{path.name}_data", size_threshold=1024
    )


class _GraphBuilder:
    """Graph builder; each method adds nodes and returns the name of their output."""

    def __init__(self, shape: BertArchitectureConfig, weights: BertWeights) -> None:
        self._shape = shape
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def embeddings(self) -> str:
        """Add the sum of word and position embeddings, normalized."""
        words = self._constant("words", self._weights["embeddings.word_embeddings.weight"])
        types = self._weights["embeddings.token_type_embeddings.weight"]
        places = self._constant("places", self._weights["embeddings.position_embeddings.weight"] + types[0])
        length = self._add("Slice", self._add("Shape", "input_ids"), *self._integers([1], [2]))
        start, axis = self._integers([0], [0])
        here = self._add("Slice", places, start, length, axis)
        return self._layer_norm("embeddings.LayerNorm", self._add("Add", self._add("Gather", words, "input_ids"), here))

    def mask(self) -> str:
        """Add the attention mask: 0 for tokens and about minus infinity for padding; batch x 1 x 1 x sequence."""
        given = self._add("Cast", "attention_mask", to=TensorProto.FLOAT)
        wide = self._add("Unsqueeze", given, *self._integers([1, 2]))
        missing = self._add("Sub", self._number("one", 1.0), wide)
        return self._add("Mul", missing, self._number("lowest", float(np.finfo(np.float32).min)))

    def layer(self, name: str, hidden: str, mask: str) -> str:
        """Add one encoder layer: attention and two dense layers, each with residual and layer normalization."""
        attended = self._dense(f"{name}.attention.output.dense", self._attention(name, hidden, mask))
        hidden = self._layer_norm(f"{name}.attention.output.LayerNorm", self._add("Add", attended, hidden))
        wide = self._add("Gelu", self._dense(f"{name}.intermediate.dense", hidden))
        narrow = self._dense(f"{name}.output.dense", wide)
        return self._layer_norm(f"{name}.output.LayerNorm", self._add("Add", narrow, hidden))

    def finished(self, hidden: str) -> onnx.ModelProto:
        """Return the complete model."""
        self._nodes.append(helper.make_node("Identity", [hidden], ["last_hidden_state"]))
        axes = ["batch", "sequence"]
        graph = helper.make_graph(
            self._nodes,
            "bert",
            [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")],
            [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*axes, self._shape.hidden_size])],
            list(self._constants.values()),
        )
        opset = helper.make_opsetid("", ONNX_OPSET_VERSION)
        return helper.make_model(graph, ir_version=ONNX_IR_VERSION, opset_imports=[opset], producer_name="kgserve")

    def _attention(self, name: str, hidden: str, mask: str) -> str:
        heads = self._shape.num_attention_heads
        width = self._shape.hidden_size // heads
        (split,) = self._integers([0, 0, heads, width])
        (joined,) = self._integers([0, 0, self._shape.hidden_size])

        def part(kind: str, order: list[int], scale: float = 1.0) -> str:
            dense = self._dense(f"{name}.attention.self.{kind}", hidden, scale)
            return self._add("Transpose", self._add("Reshape", dense, split), perm=order)

        query = part("query", [0, 2, 1, 3], 1 / sqrt(width))  # scaled at export, which is free at runtime
        scores = self._add("MatMul", query, part("key", [0, 2, 3, 1]))
        shares = self._add("Softmax", self._add("Add", scores, mask), axis=-1)
        mixed = self._add("MatMul", shares, part("value", [0, 2, 1, 3]))
        return self._add("Reshape", self._add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)

    def _dense(self, name: str, value: str, scale: float = 1.0) -> str:
        factors = self._constant(f"{name}.weight", self._weights[f"{name}.weight"].T * np.float32(scale))
        offset = self._constant(f"{name}.bias", self._weights[f"{name}.bias"] * np.float32(scale))
        return self._add("Add", self._add("MatMul", value, factors), offset)

    def _layer_norm(self, name: str, value: str) -> str:
        factors, offset = (
            self._constant(f"{name}.{part}", self._weights[f"{name}.{part}"]) for part in ("weight", "bias")
        )
        return self._add("LayerNormalization", value, factors, offset, axis=-1, epsilon=self._shape.layer_norm_eps)

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _integers(self, *values: list[int]) -> list[str]:
        return [self._constant(f"integers_{value}", np.array(value, dtype=np.int64)) for value in values]

    def _number(self, name: str, value: float) -> str:
        return self._constant(name, np.array(value, dtype=np.float32))

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name
