"""LISA as tensor functions: `naive` is the reference, `attention` picks the implementation."""
