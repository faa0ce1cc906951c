"""Routing on a virtual clock: the shipped gateway and leaders serve a trace, and only computing is
modelled."""
