"""The regression memory: one step of each write rule, its reads, its dual and its windowed form."""
