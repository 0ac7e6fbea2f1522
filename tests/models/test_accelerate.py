"""Routes by which other libraries run a model: transformers' Trainer, and offloaded weights."""

import accelerate
import pytest
import torch
from transformers import Trainer, TrainingArguments

from depth_memory.streams.ldm_maps import Forgetting


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        ids = torch.arange(index, index + 9) % 97
        return {"input_ids": ids, "labels": ids}


@pytest.mark.filterwarnings("ignore")
def test_forgetting_reaches_the_write_unrounded_in_the_trainer(make, tmp_path):
    model = make("llama", {"name": "ldm"}).train()
    seen = []
    for module in model.modules():
        if isinstance(module, Forgetting):
            with torch.no_grad():
                module.logit.fill_(-7.0)  # a factor that bfloat16 would make 1
            module.register_forward_hook(lambda _, __, factor: seen.append(factor.detach().clone()))
    arguments = TrainingArguments(
        tmp_path, max_steps=1, bf16=True, use_cpu=True, report_to=[], save_strategy="no",
        learning_rate=0.0, disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=Rows()).train()
    assert seen
    for factor in seen:
        assert factor.dtype == torch.float32
        assert (factor < 1).all()
        assert (factor.to(torch.bfloat16) == 1).all()


@torch.no_grad()
def test_offloaded_weights_come_back_for_every_stream(make, stream, ids):
    model = make("llama", stream)
    plain = model(ids).logits
    accelerate.cpu_offload(model, torch.device("cpu"))
    assert torch.equal(model(ids).logits, plain)
