"""Baton: large language models served with prefill and decode apart."""

__version__ = "0.1.0"
