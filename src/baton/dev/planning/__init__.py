"""How a number of workers is best divided: each division serves the same requests on a virtual
clock, and is judged by how many of them meet the SLOs."""
