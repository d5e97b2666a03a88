//! The failure matrix of the DevOps and DNS packs: each way in which each server fails, at each step, by the whole host.

mod jenkins;
mod objects;
mod outages;
