//! Configuration of wasmtime.

use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::contract::limits::MAX_GRANTED_TABLE_ELEMENTS;

/// Maximum number of core instances, and of tables, of one component.
const MAX_CORE_INSTANCES: u32 = 32;
/// Maximum number of linear memories of one component: an interpreter's, its adapter's and that of stubs. They cost
/// address space only.
const MAX_MEMORIES: u32 = 4;
/// Maximum number of elements of one table.
const MAX_TABLE_ELEMENTS: usize = MAX_GRANTED_TABLE_ELEMENTS as usize;

/// The size of the instance pool.
#[derive(Clone, Copy)]
pub(super) struct PoolSize {
    /// Maximum number of concurrent calls.
    pub concurrency: u32,
    /// Maximum bytes of one linear memory.
    pub memory: usize,
}

/// Builds the configuration. `core_dumps` makes the memories of a component readable after a trap, for tests.
pub(super) fn build_config(pool: Option<PoolSize>, core_dumps: bool) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.concurrency_support(false);
    config.coredump_on_trap(core_dumps);
    if let Some(PoolSize { concurrency, memory }) = pool {
        let mut pooling = PoolingAllocationConfig::default();
        pooling
            .total_component_instances(concurrency)
            // The maximum of one component for all calls at once: no call fails because others have used up the pool.
            .max_core_instances_per_component(MAX_CORE_INSTANCES)
            .total_core_instances(concurrency * MAX_CORE_INSTANCES)
            .max_memories_per_component(MAX_MEMORIES)
            .total_memories(concurrency * MAX_MEMORIES)
            .max_tables_per_component(MAX_CORE_INSTANCES)
            .total_tables(concurrency * MAX_CORE_INSTANCES)
            .total_stacks(concurrency)
            .max_memory_size(memory)
            .table_elements(MAX_TABLE_ELEMENTS)
            // Touched pages are zeroed and kept, because returning them to the system costs more than the call. A kernel
            // with PAGEMAP_SCAN (6.7 and later) reports the touched pages, so only these are zeroed.
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
