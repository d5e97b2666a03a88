//! Scenarios of packs, brokers and other clusters; `main.rs` has those of the host.

mod clusters;
mod devops;
mod dns;
mod message_chaos;
mod message_order;
mod messaging;
mod node;
mod pipelines;
mod providers;
mod rabbitmq;
mod stack;
mod steps;
