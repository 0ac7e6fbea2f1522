"""Public kernels get the parameters and the state of our streams, in the order they expect.

The packages need a GPU; here stands in for each of them its formula, with its signature.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from depth_memory import models
from depth_memory.bench import parse_method, public
from depth_memory.errors import UserError

SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16,
    "head_dim": 16,
}  # fmt: skip


def attend(query: Tensor, sources: list[Tensor], weight: Tensor, eps: float) -> Tensor:
    keys = [F.rms_norm(v, v.shape[-1:], weight, eps) for v in sources]
    logits = torch.stack([k @ query for k in keys])
    return (logits.softmax(0)[..., None] * torch.stack(list(sources))).sum(0)


def fused_attnres(query, residuals, rms_weight, output_rms_weight=None, rms_eps=1e-6) -> Tensor:
    x = attend(query, residuals, rms_weight, rms_eps)
    return x if output_rms_weight is None else F.rms_norm(x, x.shape[-1:], output_rms_weight, 1e-6)


def fast_attnres(values, query, *, eps) -> Tensor:
    assert query.dtype == torch.bfloat16
    return attend(query.float(), values, torch.ones(query.shape), eps)


def liger_mhc_coeffs(x, phi, b, alpha_pre, alpha_post, alpha_res, *, tmax, rms_eps) -> Any:
    n = x.shape[-2]
    flat = x.flatten(-2)
    mixed = F.rms_norm(flat, flat.shape[-1:], eps=rms_eps) @ phi
    pre, post, res = mixed.split([n, n, n * n], -1)
    bias_pre, bias_post, bias_res = b.split([n, n, n * n])
    logits = (alpha_res * res + bias_res).unflatten(-1, (n, n))
    for _ in range(tmax):  # rows first, so that the columns are exact
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    pre = (alpha_pre * pre + bias_pre).sigmoid()
    return pre, 2 * (alpha_post * post + bias_post).sigmoid(), logits.exp()


def liger_mhc_pre(x, h_pre) -> Tensor:
    return (h_pre[..., None] * x).sum(-2)


def liger_mhc_post_res(x, f_out, h_post, h_res) -> Tensor:
    return h_res @ x + h_post[..., None] * f_out[..., None, :]


LIGER = ("liger_mhc_coeffs", "liger_mhc_pre", "liger_mhc_post_res")
MODULES = {
    "fla": {},
    "fla.ops": {},
    "fla.ops.attnres": {"fused_attnres": fused_attnres},
    "attnres": {"attnres": fast_attnres},
    "liger_kernel": {},
    "liger_kernel.transformers": {},
    "liger_kernel.transformers.functional": {
        f.__name__: f for f in (liger_mhc_coeffs, liger_mhc_pre, liger_mhc_post_res)
    },
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function was called."""
    found: Counter[str] = Counter()

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found[function.__name__] += 1
            return function(*args, **kwargs)

        return call

    for name, content in MODULES.items():
        module = ModuleType(name)
        vars(module).update({key: counted(function) for key, function in content.items()})
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.mark.parametrize(
    ("kernels", "stream", "tolerance", "expected"),
    [
        ("fla", {"name": "block_attnres", "blocks": 3}, 1e-5, {"fused_attnres": 6}),
        ("fla", {"name": "attnres"}, 1e-5, {"fused_attnres": 6}),
        ("fast_attnres", {"name": "attnres"}, 3e-2, {"fast_attnres": 6}),
        ("liger", {"name": "mhc", "exact_sums": "columns"}, 1e-5, dict.fromkeys(LIGER, 6)),
    ],
)
def test_they_compute_what_ours_do(
    kernels: str, stream: dict, tolerance: float, expected: dict, calls: Counter[str]
) -> None:
    torch.manual_seed(0)
    model = models.build_model("llama", stream, **SHAPE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(50, (2, 7))
    ours = model(input_ids=ids).logits
    before = {name: id(p) for name, p in model.named_parameters()}
    public.install_(model, kernels)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    theirs = model(input_ids=ids).logits
    assert calls == expected
    torch.testing.assert_close(theirs, ours, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mhc@fla", "--method: kernels fla: got 'mhc'; allowed: attnres, block_attnres"),
        ("attnres@flash", "--method: kernels: got 'flash'; allowed: "),
        ("mhc@liger", "--method: kernels: got 'liger'; allowed: .*pip install liger-kernel"),
        ("preln_transformers@fla", "--method: got 'preln_transformers@fla'"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=message):
        parse_method(text)
