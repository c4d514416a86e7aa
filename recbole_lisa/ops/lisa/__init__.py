"""LISA as tensor functions: `attention` picks the implementation."""
