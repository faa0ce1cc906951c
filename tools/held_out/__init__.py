"""A plan beside the service that it foretells, under loads that nothing was fitted to."""
