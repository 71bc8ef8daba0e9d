"""Compilers: a graph in, engine files out."""
