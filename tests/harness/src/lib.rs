//! What the scenario tests share: API servers, simulators, hosts, waiting for conditions.
