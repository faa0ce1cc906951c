"""The vocabulary of a model: which token ids a text has, read from the files that a checkpoint
publishes.

Gateways encode prompts with it; workers give it to grammars. It knows files and `tokenizers`, and
nothing of requests. Begin with load.py.
"""
