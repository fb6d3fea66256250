"""What a step's kernels read and write, against what a few operators must."""

import torch

from benchmarks import traffic
from benchmarks.gpu.ladder import WORKLOADS
from benchmarks.traffic import OperatorBytes, compiled_bytes
from dotformer.transformer import Transformer

A, B, C = 16, 24, 40


def test_an_operator_reads_its_arguments_and_writes_its_result_and_a_view_moves_nothing():
    x, y = torch.ones(A, B), torch.ones(B)
    with OperatorBytes() as counted:
        torch.add(x.T.reshape(-1)[:B], other=y)
        y.mul_(x[0])
    assert counted.bytes.pop("aten::clone") == 2 * x.nbytes  # reshape copies what is transposed
    assert counted.bytes == {"aten::add.Tensor": 3 * y.nbytes, "aten::mul_.Tensor": 3 * y.nbytes}


def test_what_is_fused_is_read_and_written_once():
    x, w = torch.ones(A, B), torch.ones(B, C)
    with compiled_bytes() as counted:
        torch.compile(lambda x, w: ((x @ w).relu() + 1).sigmoid())(x, w)
    product = 4 * A * C
    assert counted == {"products": x.nbytes + w.nbytes + product, "fused": 2 * product}


def test_the_parts_of_a_small_step():
    counted, (workload, vocabulary) = traffic.step_bytes("quick"), (WORKLOADS["quick"], 51)
    tokens, parameters = counted["pairs"] * counted["length"], Transformer(workload.config).parameters()
    update, outside = (counted["bytes"][part] for part in ("update", "embeddings and logits"))
    padded = sum(p.numel() for p in parameters) + (64 - vocabulary) * workload.config.d_model
    assert counted["pairs"] == 4 * workload.pairs and counted["length"] == workload.length
    # AdamW reads and writes parameters, gradients and both moments, and a step count for each tensor
    assert 8 * 4 * padded <= update["aten::_fused_adamw_"] < 8 * 4 * padded + 4000
    assert update["aten::_foreach_norm.Scalar"] >= 4 * padded
    assert outside["aten::slice_backward"] == 2 * tokens * (vocabulary + 64)
    encoder, decoder = (counted["bytes"][part] for part in ("encoder layer", "decoder layer"))
    assert decoder["attention"] == 2 * encoder["attention"] and decoder["fused"] > encoder["fused"] > 0
