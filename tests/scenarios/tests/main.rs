//! All scenarios in one test binary, so that they share one link, the fixtures and the test threads.

mod admin;
mod alerts;
mod author;
mod bad_input;
mod builds;
mod chain;
mod chaos;
mod clusters;
mod commands;
mod console;
mod counts;
mod crash;
mod deletion;
mod devops;
mod dns;
mod effects;
mod faults;
mod grants;
mod hostile;
mod idle_code;
mod install;
mod kinds;
mod languages;
mod leadership;
mod lifecycle;
mod memory;
mod message_chaos;
mod message_order;
mod messaging;
mod node;
mod observability;
mod permits;
mod pipelines;
mod plan;
mod plugins;
mod priority;
mod protection;
mod providers;
mod rabbitmq;
mod recordings;
mod references;
mod registry;
mod secrets;
mod shared_cluster;
mod stack;
mod status;
mod steps;
mod substitutions;
mod swap;
mod tenants;
mod traces;
mod upstreams;
mod watches;

#[global_allocator]
static ALLOCATOR: ostler_test_harness::allocations::CountingAllocator =
    ostler_test_harness::allocations::CountingAllocator;
