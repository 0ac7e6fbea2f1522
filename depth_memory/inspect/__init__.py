"""What a trained model does with its stream: exact retrieval weights, and statistics by depth."""

from depth_memory.inspect.measures import statistics
from depth_memory.inspect.report import report
from depth_memory.inspect.retrieval import RetrievalMap, retrieval_map

__all__ = ["RetrievalMap", "report", "retrieval_map", "statistics"]
