"""Worlds whose workers are guests of simulated vLLM engines. Begin with vllm.py."""
