"""From a pretrained Llama or Qwen3 to one with a stream, and back, in the memory of one tensor.

`convert` gives a saved model a stream that keeps its function, `to_transformers` takes the
ordinary residual away again. Read `convert.py` first.
"""

from depth_memory.convert.convert import Conversion, convert, to_transformers

__all__ = ["Conversion", "convert", "to_transformers"]
