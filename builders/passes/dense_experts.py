"""A mixture of experts whose shapes do not depend on data."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ..network.moe import DISPATCH, EXPERTS, ROUTE, SPLIT, UNSORT
from .linear import integers


class DenseExperts(ir.passes.InPlacePass):
    """Every expert computes every row, and a token takes the K results that it chose: the same sum for E/K times the work.

    How many rows an expert gets depends on data. TensorRT would have to ask the GPU for it in the middle of a pass, could capture no CUDA
    graph of that, and sorts no more than 3,840 choices; here all shapes follow from the inputs'. For n tokens:

        rows [1,n,H]·gate_up of each → [E,n,2I] → SiLU → [E,n,I] → ·down of each → [E,n,H] → transposed [n,E,H] → the chosen [n,K,H]

    A graph without experts is left as it is.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Change the nodes that carry rows to the experts and back; what sorted them goes."""
        layers = 0
        for node in list(model.graph):
            part = node.metadata_props.get(EXPERTS)
            if part == ROUTE:
                chosen, layers = node.outputs[1], layers + 1
            elif part == DISPATCH:
                _give_all_rows(model.graph, node, f"experts.{layers}")
            elif part == SPLIT:
                node.resize_inputs(1)
                node.attributes.add(ir.AttrInt64("num_outputs", len(node.outputs)))
            elif part == UNSORT:
                _take_chosen(model.graph, node, chosen, f"experts.{layers}")
        if layers:
            RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=layers > 0)

    def ensures(self, model: ir.Model) -> None:
        """Nothing is sorted any more: one TopK is left a layer, the router's."""
        for node in model.graph:
            if node.op_type == "TopK" and node.metadata_props.get(EXPERTS) != ROUTE:
                raise ir.passes.PostconditionError(f"{node.outputs[1].name} still sorts rows by expert")


def _give_all_rows(graph: ir.Graph, dispatch: ir.Node, name: str) -> None:
    """Split(Gather(rows, order), counts) → rows [1,n,H] for each expert."""
    gathered = dispatch.inputs[0]
    assert gathered is not None
    gather = gathered.producer()
    assert gather is not None
    every = ir.node("Unsqueeze", [gather.inputs[0], integers(graph, f"{name}.first_axis", 0)])
    graph.insert_before(dispatch, every)
    ir.convenience.replace_all_uses_with(dispatch.outputs, [every.outputs[0]] * len(dispatch.outputs))


def _take_chosen(graph: ir.Graph, unsort: ir.Node, chosen: ir.Value, name: str) -> None:
    """Gather(joined, place) → the results [n,K,H] of joined [E,n,H] that the n tokens chose."""
    by_token = ir.node("Transpose", [unsort.inputs[0]], attributes={"perm": [1, 0, 2]})
    index = ir.node("Unsqueeze", [chosen, integers(graph, f"{name}.last_axis", -1)])
    taken = ir.node("GatherND", [by_token.outputs[0], index.outputs[0]], attributes={"batch_dims": 1}, name=f"{name}.chosen")
    ir.convenience.replace_nodes_and_values(graph, unsort, [unsort], [by_token, index, taken], unsort.outputs, taken.outputs)
