//! `ostler plugin`: commands for authors and administrators of plugins.

#[cfg(feature = "dev")]
mod build;
#[cfg(feature = "dev")]
mod crds;
#[cfg(feature = "dev")]
mod deploy;
#[cfg(feature = "dev")]
mod dev;
#[cfg(feature = "dev")]
mod expectation;
#[cfg(feature = "dev")]
mod files;
mod grants;
mod inspect;
mod install;
#[cfg(feature = "dev")]
mod new;
#[cfg(feature = "dev")]
mod project;
mod push;
#[cfg(feature = "dev")]
mod simulated_upstream;
#[cfg(feature = "dev")]
mod stage;
#[cfg(feature = "dev")]
mod test;
mod verify;

pub use self::install::uninstall_plugin;

use clap::Subcommand;

#[cfg(feature = "dev")]
use crate::kube::well_known::environment;
use crate::observe::telemetry::LogFormat;

/// The commands.
#[derive(Subcommand)]
pub enum PluginCommand {
    /// Create a plugin project with a kind, a sample and a test.
    #[cfg(feature = "dev")]
    New(new::PluginNewCommand),
    /// Build the component of a plugin.
    #[cfg(feature = "dev")]
    Build(build::PluginBuildCommand),
    /// Write the CRDs of a plugin's types into crds/.
    #[cfg(feature = "dev")]
    Crds(crds::Crds),
    /// Test a plugin: run its own tests, then its component in a host with an embedded API server.
    #[cfg(feature = "dev")]
    Test(test::PluginTestCommand),
    /// Develop a plugin: build and run it, and rebuild and reload it whenever a file changes.
    #[cfg(feature = "dev")]
    Dev(dev::PluginDevCommand),
    /// Build, push and install the plugin of a project.
    #[cfg(feature = "dev")]
    Deploy(Box<deploy::Deploy>),
    /// Inspect a component: name, kinds, requested permissions, imported functions, and size by section.
    Inspect(inspect::PluginInspectCommand),
    /// Print the grants that a component asks for.
    Grants(grants::PluginGrantsCommand),
    /// Push a component to an OCI registry, and optionally sign it.
    Push(push::Push),
    /// Install or upgrade a plugin: its Plugin object, service account and roles.
    Install(Box<install::Install>),
    /// Uninstall a plugin: its Plugin object, service account and roles.
    Uninstall(install::Uninstall),
    /// Verify a component: its digest, its signatures, and whether this host can run it.
    Verify(verify::PluginVerifyCommand),
}

impl PluginCommand {
    /// The log format of commands that run a host; the others print and do not log.
    pub fn log_format(&self) -> Option<LogFormat> {
        match self {
            #[cfg(feature = "dev")]
            Self::Dev(_) => Some(LogFormat::Pretty),
            // The table shows failures; logs are printed on request only.
            #[cfg(feature = "dev")]
            Self::Test(_) => std::env::var_os(environment::OSTLER_LOG).map(|_| LogFormat::Pretty),
            #[cfg(feature = "dev")]
            Self::New(_) | Self::Build(_) | Self::Crds(_) | Self::Deploy(_) => None,
            Self::Inspect(_)
            | Self::Grants(_)
            | Self::Push(_)
            | Self::Verify(_)
            | Self::Install(_)
            | Self::Uninstall(_) => None,
        }
    }

    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        match self {
            #[cfg(feature = "dev")]
            Self::New(new) => new.run(),
            #[cfg(feature = "dev")]
            Self::Build(build) => build.run().await,
            #[cfg(feature = "dev")]
            Self::Crds(crds) => crds.run().await,
            #[cfg(feature = "dev")]
            Self::Test(test) => test.run().await,
            #[cfg(feature = "dev")]
            Self::Dev(dev) => dev.run().await,
            #[cfg(feature = "dev")]
            Self::Deploy(deploy) => deploy.run().await,
            Self::Inspect(inspect) => inspect.run().await,
            Self::Grants(grants) => grants.run().await,
            Self::Push(push) => push.run().await,
            Self::Install(install) => install.run().await,
            Self::Uninstall(uninstall) => uninstall.run().await,
            Self::Verify(verify) => verify.run().await,
        }
    }
}

/// Formats a size in bytes.
fn format_kilobytes(bytes: usize) -> String {
    format!("{:.1} KB", bytes as f64 / 1000.0)
}
