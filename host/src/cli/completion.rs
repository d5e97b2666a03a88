//! Completions in shells: of commands and options, and of the kinds, names and namespaces of objects, which the host is asked for.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    io::{ErrorKind, Write},
    time::Duration,
};

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::{
    Shell,
    engine::{ArgValueCompleter, CompletionCandidate, complete},
    env::{CompleteEnv, Shells},
};

use super::{Cli, connection::HostAddress, program_name};
use crate::{admin::objects::ObjectSummary, kube::well_known::environment};

/// Name by which kubectl calls this binary to complete `kubectl ostler`.
pub const KUBECTL_COMPLETER: &str = "kubectl_complete-ostler";
/// Last line for kubectl: the names of files are no values.
const NO_FILES_DIRECTIVE: &str = ":4";
/// Time that a user waits for values. After it there are none.
const VALUES_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `ostler completion`.
#[derive(Args)]
#[command(
    after_help = "For `kubectl ostler`, link this binary as `kubectl_complete-ostler` beside `kubectl-ostler`: kubectl calls it by \
                  that name."
)]
pub struct Completion {
    /// Shell, as in `source <(ostler completion bash)`.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    /// Prints the script, which calls this binary for the completions.
    pub fn run(&self) -> anyhow::Result<()> {
        let shells = Shells::builtins();
        let shell = self.shell.to_string();
        let completer = shells
            .completer(&shell)
            .with_context(|| format!("there is no script for {shell}"))?;
        let mut script = Vec::new();
        completer.write_registration(
            environment::OSTLER_COMPLETE,
            "ostler",
            "ostler",
            "ostler",
            &mut script,
        )?;
        write_output(&script)?;
        Ok(())
    }
}

/// Prints completions if this process was started for them. Returns true then.
pub fn complete_command_line() -> anyhow::Result<bool> {
    if program_name().as_deref() == Some(OsStr::new(KUBECTL_COMPLETER)) {
        let mut words: Vec<OsString> = std::env::args_os().collect();
        let last = words.len() - 1;
        if let Some(program) = words.first_mut() {
            *program = "ostler".into();
        }
        let candidates = complete(&mut Cli::command(), words, last, None)?;
        let mut text = String::new();
        for candidate in candidates.iter().filter(|candidate| !candidate.is_hide_set()) {
            text.push_str(&format!("{}\n", candidate.get_value().to_string_lossy()));
        }
        write_output(format!("{text}{NO_FILES_DIRECTIVE}\n").as_bytes())?;
        return Ok(true);
    }
    let environment = CompleteEnv::with_factory(Cli::command).var(environment::OSTLER_COMPLETE);
    Ok(environment.try_complete(std::env::args_os(), None)?)
}

fn write_output(bytes: &[u8]) -> std::io::Result<()> {
    match std::io::stdout().write_all(bytes) {
        // The reader closed the pipe, as `head` does.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Completes KIND/NAME: first the kind, then the name.
pub fn object_completer() -> ArgValueCompleter {
    complete_object("/")
}

/// Completes KIND[/NAME].
pub fn target_completer() -> ArgValueCompleter {
    complete_object("")
}

/// Completes a kind, with what follows it, and then the name.
fn complete_object(end: &'static str) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        list_candidates(current, |object, current| {
            let kind = object.short_kind();
            match current.contains('/') {
                true => format!("{kind}/{}", object.name),
                false => format!("{kind}{end}"),
            }
        })
    })
}

/// Completes the namespaces of objects.
pub fn namespace_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| list_candidates(current, |object, _| object.namespace.clone()))
}

/// Completes the plugins of objects.
pub fn plugin_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| list_candidates(current, |object, _| object.plugin.clone()))
}

/// The distinct values of objects that begin with what was typed. A host that can't be asked has none: an error would end up in the
/// command line.
fn list_candidates(
    current: &OsStr,
    value: impl Fn(&ObjectSummary, &str) -> String,
) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let objects = fetch_objects().unwrap_or_default();
    let values: BTreeSet<String> = objects.iter().map(|object| value(object, &current)).collect();
    let matching = values
        .into_iter()
        .filter(|value| !value.is_empty() && value.starts_with(&*current));
    matching.map(CompletionCandidate::new).collect()
}

/// The objects that the user may list, of the host that a command without options would ask.
fn fetch_objects() -> anyhow::Result<Vec<ObjectSummary>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let fetched = async {
            HostAddress::from_environment()
                .connect()
                .await?
                .get("/states", &[])
                .await
        };
        tokio::time::timeout(VALUES_TIMEOUT, fetched).await?
    })
}
