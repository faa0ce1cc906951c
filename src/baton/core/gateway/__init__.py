"""A gateway's request logic: the queue at its edge, the choice of workers, epochs, tokens that
clients have been sent.

Knows neither the scheduler nor ranks: workers are what they say of themselves. Begin with front.py.
"""
