"""`baton deploy`: writes what other systems need to run a service of several machines."""
