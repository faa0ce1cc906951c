"""A service on a virtual clock: the core of a gateway, leaders and ranks as they are shipped; only
what computes and what reads takes time instead."""
