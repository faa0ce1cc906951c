"""The leader of a worker: which rooms are admitted, what each step computes, which room gives way
when memory runs short.

It knows memory, handoff and session, but neither ranks nor the gateway. Begin with leader.py, which
takes events and issues plans, and with roles.py, which names the stages of each role. stage.py says
what a stage is asked; worker.py is what stages share.
"""
