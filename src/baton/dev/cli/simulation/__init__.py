"""`baton sim`: the simulator from the command line, in as many processes as there are cores."""
