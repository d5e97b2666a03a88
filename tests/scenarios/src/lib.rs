//! Scenario tests: the whole host against both API servers.
