"""Sessions: numbered, acknowledged messages in order between two processes, and who may send which
message.

Begin with session.py; stream.py is one side of one session.
"""
