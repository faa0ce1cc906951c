"""The manifests of a service on Kubernetes, made of settings without asking a cluster."""
