"""Runs the programs of a service on the nodes of a Ray cluster. Only this package imports Ray.

`shell/supervisor.py` decides here too what is started, restarted and stopped. `cluster.py` connects
and places, `run.py` stands in for a running program, `actor.py` is what runs on the nodes.
"""
