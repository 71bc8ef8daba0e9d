"""Compile, prove, measure and deploy speculative decoding."""

from importlib.metadata import version as _version

__version__ = _version("specbuild")
__all__ = ["__version__"]
