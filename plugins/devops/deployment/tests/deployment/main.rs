//! DeploymentRecords against the SDK's mock, with a Jenkins and an Argo CD that react to what is sent.

mod matrix;
mod phases;
mod restart;
mod server;
mod world;
