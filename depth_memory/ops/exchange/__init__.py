"""The D-sized passes of one exchange between two sublayers and the streams, as kernels."""
