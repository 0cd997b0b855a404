//! A strict imitation of a Kubernetes API server, for tests. Not part of the product.
