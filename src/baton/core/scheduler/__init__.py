"""A worker's leader: which rooms are admitted, what each step computes, who gives way when memory runs short.

Knows memory, handoff and session; neither ranks nor the gateway. Begin with leader.py, then the role: prefill.py, decode.py or
unified.py.
"""
