//! Scenarios of the host. Those of packs, brokers and other clusters are in `packs.rs`: two crates of half the size are compiled side
//! by side, and a change of one scenario compiles one of them.

mod author;
mod bad_input;
mod builds;
mod chain;
mod chaos;
mod counts;
mod crash;
mod deletion;
mod effects;
mod faults;
mod grants;
mod hostile;
mod kinds;
mod languages;
mod leadership;
mod lifecycle;
mod observability;
mod plan;
mod plugins;
mod priority;
mod protection;
mod recordings;
mod references;
mod registry;
mod secrets;
mod status;
mod substitutions;
mod swap;
mod tenants;
mod traces;
mod upstreams;
mod watches;

#[global_allocator]
static ALLOCATOR: ostler_test_harness::allocations::CountingAllocator =
    ostler_test_harness::allocations::CountingAllocator;
