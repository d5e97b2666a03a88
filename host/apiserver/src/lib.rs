//! An embedded Kubernetes API server: the real protocol, in memory.
