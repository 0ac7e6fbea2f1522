"""What a trained model does with its stream: exact retrieval weights, and statistics by depth."""

from depth_memory.inspect.ablations import Ablated, Ablation, ablation
from depth_memory.inspect.document import describe, unpack
from depth_memory.inspect.measures import statistics
from depth_memory.inspect.replay import writes
from depth_memory.inspect.report import report
from depth_memory.inspect.retrieval import RetrievalMap, retrieval_map

__all__ = [
    "Ablated",
    "Ablation",
    "RetrievalMap",
    "ablation",
    "describe",
    "report",
    "retrieval_map",
    "statistics",
    "unpack",
    "writes",
]
