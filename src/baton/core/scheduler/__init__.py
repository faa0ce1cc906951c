"""A worker's leader: which rooms are admitted, what each step computes, who gives way when memory
runs short.

Knows memory, handoff and session; neither ranks nor the gateway. Begin with leader.py, which takes
events and issues plans, and with roles.py, which names the stages of each role; stage.py says what
a stage is asked. What stages share is in worker.py.
"""
