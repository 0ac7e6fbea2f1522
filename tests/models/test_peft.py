"""LoRA by PEFT trains, saves and loads on top of any stream."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

# PEFT asks transformers by a name that 5.23 deprecated
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def adapt(model, **options):
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], **options))


def test_lora(make, family, stream, ids, tmp_path):
    model = adapt(make(family, stream), task_type="CAUSAL_LM").train()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 2
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    expected = model.eval()(input_ids=ids).logits
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(make(family, stream), tmp_path).eval()
    assert torch.equal(again(input_ids=ids).logits, expected)
    options = {"max_new_tokens": 4, "do_sample": False}
    tokens = again.generate(input_ids=ids, **options)
    assert torch.equal(tokens, again.generate(input_ids=ids, **options, use_cache=False))
    exact = again.double()(input_ids=ids).logits
    torch.testing.assert_close(again.merge_and_unload()(ids).logits, exact, atol=1e-9, rtol=1e-9)


def test_lora_on_the_stream_s_own_maps(make, ids):
    """The read and write maps are no `nn.Linear`; they are trained whole, beside the adapters."""
    model = adapt(make("llama", {"name": "ldm"}), modules_to_save=["attn_port", "mlp_port"])
    model.train()(input_ids=ids, labels=ids).loss.backward()
    own = [p for name, p in model.named_parameters() if "_port.modules_to_save" in name]
    assert own
    assert all(p.grad is not None for p in own)
