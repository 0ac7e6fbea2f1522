"""Data: text to tokenised shards, and shards to batches in an order that is a pure function.

`prepare` turns text files, JSON lines, Parquet or a dataset of the hub into a folder of
memory-mapped token shards with a manifest; `open_split` opens a split of it; `TokenData.batch`
gives the rows of any step, and `TokenData.windows` the windows to evaluate on. `ensure_default`
prepares the embedded corpus.
"""

from depth_memory.data.corpus import default_tokenizer, embedded_corpus, ensure_default
from depth_memory.data.documents import beginning_bytes, beginnings
from depth_memory.data.filling import Progress
from depth_memory.data.manifest import Manifest, read_manifest
from depth_memory.data.pipeline import prepare, verify
from depth_memory.data.sources import read_rows
from depth_memory.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from depth_memory.data.tokens import TokenData, bits_per_byte, open_split

__all__ = [
    "Manifest",
    "Progress",
    "TokenData",
    "Tokenizer",
    "beginning_bytes",
    "beginnings",
    "bits_per_byte",
    "default_tokenizer",
    "embedded_corpus",
    "ensure_default",
    "load_tokenizer",
    "open_split",
    "prepare",
    "read_manifest",
    "read_rows",
    "train_tokenizer",
    "verify",
]
