"""A saved model read by transformers; whatever is wrong with its files is one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from depth_memory.errors import UserError, choose
from depth_memory.files import explained

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def read(folder: Path, known: Sequence[str] | None = None) -> PreTrainedModel:
    """The model in `folder`, of one of the `known` architectures if given.

    Raises:
        UserError: A file is damaged, or they do not belong together.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    from depth_memory import weights

    weights.verify(folder)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = _config(folder, known, options)
    with explained(folder / "generation_config.json") as path:
        if path.exists():
            GenerationConfig.from_pretrained(folder)
    options |= {"config": config, "output_loading_info": True, "use_safetensors": True}
    with explained(folder):
        model, report = cast(Any, AutoModelForCausalLM.from_pretrained(folder, **options))
    for key, problem in (("missing_keys", "missing"), ("unexpected_keys", "not the model's")):
        names = sorted(report[key])
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UserError(f"{folder}: weights are {problem}: {names[0]}{more}")
    return model


def _config(folder: Path, known: Sequence[str] | None, options: dict[str, Any]) -> PreTrainedConfig:
    """The configuration of a model, of which one can be built that the weights may fill."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import depth_memory.models  # noqa: F401 - makes the auto classes know our own
    from depth_memory import weights

    path = folder / "config.json"
    with explained(path):
        config = AutoConfig.from_pretrained(folder, **options)
    if known is not None:
        choose(f"{folder}: model_type", config.model_type, known)
    weights.check_there(folder)
    with explained(path), torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config)
    wanted, there = sum(p.numel() for p in outline.parameters()), weights.count(folder)
    # where some are missing, loading says which; quantised ones are packed, several to an element
    if getattr(config, "quantization_config", None) is None and wanted > 2 * there:
        problem = f"it asks for {wanted} parameters, and the weights have {there}"
        raise UserError(f"{path}: cannot be loaded: {problem}")
    return config
