"""Linear Depth Memory and its peers: how information travels across the depth of a transformer."""

__version__ = "0.1.0"
