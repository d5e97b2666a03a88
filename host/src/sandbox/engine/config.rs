//! How wasmtime is set up.

use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::contract::limits::MOST_TABLE_ELEMENTS;

/// Core instances, and tables, of one component.
const INSTANCES: u32 = 32;
/// Linear memories of one component: an interpreter's, its adapter's and that of stubs. They cost addresses alone.
const MEMORIES: u32 = 4;
/// Elements of one table.
const TABLE: usize = MOST_TABLE_ELEMENTS as usize;

/// With a pool for so many calls at the same time, of so many bytes each; with memories that can be looked at.
pub(super) fn config(pool: Option<(u32, usize)>, dump: bool) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.concurrency_support(false);
    config.coredump_on_trap(dump);
    if let Some((concurrency, memory)) = pool {
        let mut pooling = PoolingAllocationConfig::default();
        pooling
            .total_component_instances(concurrency)
            // All that one may have, for all at once: nobody's call fails because another took what there is.
            .max_core_instances_per_component(INSTANCES)
            .total_core_instances(concurrency * INSTANCES)
            .max_memories_per_component(MEMORIES)
            .total_memories(concurrency * MEMORIES)
            .max_tables_per_component(INSTANCES)
            .total_tables(concurrency * INSTANCES)
            .total_stacks(concurrency)
            .max_memory_size(memory)
            .table_elements(TABLE)
            // What a call has touched is wiped, not given back to the system: that costs more than the call.
            // Where the kernel tells what was touched (6.7 and later) only that is wiped.
            .pagemap_scan(Enabled::Auto)
            .linear_memory_keep_resident(if PoolingAllocationConfig::is_pagemap_scan_available() {
                1 << 20
            } else {
                64 << 10
            })
            .async_stack_keep_resident(64 << 10)
            .table_keep_resident(16 << 10);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling));
    }
    config
}
