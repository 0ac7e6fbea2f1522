"""Llama and Qwen3 with a stream in place of the residual; transformers' auto classes know them.

`build_model` makes a fresh model, `from_pretrained` of each class loads one, from this package or
from the plain backbone, and `graft` gives a loaded transformers model a stream.
"""

from depth_memory.models.causal_lm import DepthForCausalLM as DepthForCausalLM
from depth_memory.models.causal_lm import DepthLlamaForCausalLM as DepthLlamaForCausalLM
from depth_memory.models.causal_lm import DepthQwen3ForCausalLM as DepthQwen3ForCausalLM
from depth_memory.models.config import DepthLlamaConfig as DepthLlamaConfig
from depth_memory.models.config import DepthQwen3Config as DepthQwen3Config
from depth_memory.models.families import FAMILIES as FAMILIES
from depth_memory.models.families import family_name as family_name
from depth_memory.models.graft import graft as graft
from depth_memory.models.registry import build_model as build_model
from depth_memory.models.registry import class_for as class_for
from depth_memory.models.registry import config_for as config_for
from depth_memory.models.registry import register
from depth_memory.models.trunk import DepthLlamaModel as DepthLlamaModel
from depth_memory.models.trunk import DepthQwen3Model as DepthQwen3Model

register()
