//! Child processes that never outlive this one, and the end by Ctrl-C.

use std::{
    collections::BTreeSet,
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Condvar, Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// What a signal does: tells the waiting, ends the children.
struct Interrupt {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    interrupted: bool,
    groups: BTreeSet<i32>,
}

static INTERRUPT: Interrupt = Interrupt {
    state: Mutex::new(State {
        interrupted: false,
        groups: BTreeSet::new(),
    }),
    changed: Condvar::new(),
};

fn state() -> std::sync::MutexGuard<'static, State> {
    // A set of numbers is right at any time.
    INTERRUPT.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on Ctrl-C (and SIGTERM, SIGHUP) ends the children, and with them what
/// waits for them, so that everything is put away on the usual way out. Twice is at once.
pub fn on_interrupt() -> Result<()> {
    let handler = || {
        let mut state = state();
        let signal = if state.interrupted {
            Signal::KILL
        } else {
            Signal::TERM
        };
        for group in &state.groups {
            kill(*group, signal);
        }
        if state.interrupted {
            std::process::exit(130);
        }
        state.interrupted = true;
        INTERRUPT.changed.notify_all();
    };
    ctrlc::set_handler(handler).context("listening for Ctrl-C")
}

/// Waits this long, or until interrupted; says whether it was.
pub fn interrupted_within(time: Duration) -> bool {
    let wait = INTERRUPT
        .changed
        .wait_timeout_while(state(), time, |state| !state.interrupted);
    wait.unwrap_or_else(PoisonError::into_inner).0.interrupted
}

/// An error once interrupted, so that `?` ends whatever is going on.
pub fn check_interrupt() -> Result<()> {
    if state().interrupted {
        bail!("interrupted");
    }
    Ok(())
}

/// Ends whatever still runs; for the way out.
pub fn end_all() {
    for group in &state().groups {
        kill(*group, Signal::TERM);
    }
}

fn kill(group: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(group) {
        // Fails when it has ended already, which is what is wanted.
        let _ = kill_process_group(pid, signal);
    }
}

/// A process in a group of its own, ended (with all its own) when dropped.
pub struct Child {
    name: String,
    pid: u32,
    ended: mpsc::Receiver<std::io::Result<ExitStatus>>,
    status: Option<ExitStatus>,
    log: Option<PathBuf>,
    /// What the process says on stdout, when piped.
    pub stdout: Option<std::process::ChildStdout>,
    /// What it says on stderr, when piped.
    pub stderr: Option<std::process::ChildStderr>,
}

impl Child {
    /// Starts a process.
    pub fn spawn(name: &str, mut command: Command) -> Result<Self> {
        check_interrupt()?;
        let mut state = state();
        command.process_group(0).stdin(Stdio::null());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {name} ({})", command.get_program().display()))?;
        let pid = child.id();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        state.groups.insert(pid as i32);
        drop(state);
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let status = child.wait();
            // A reaped process' number may be another's tomorrow.
            self::state().groups.remove(&(pid as i32));
            sender.send(status)
        });
        Ok(Self {
            name: name.into(),
            pid,
            ended,
            status: None,
            log: None,
            stdout,
            stderr,
        })
    }

    /// Starts a process that writes all it says to a file.
    pub fn spawn_logged(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
        command.stdout(file.try_clone()?).stderr(file);
        Self::spawn_with_log(name, command, log)
    }

    /// The same for stderr alone; stdout goes where the command says.
    pub fn spawn_logging_stderr(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
        command.stderr(file);
        Self::spawn_with_log(name, command, log)
    }

    fn spawn_with_log(name: &str, command: Command, log: &Path) -> Result<Self> {
        let mut child = Self::spawn(name, command)?;
        child.log = Some(log.to_owned());
        Ok(child)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        if self.status.is_none() {
            self.status = Some(self.ended.recv().context("its waiter ended")??);
        }
        self.status.context("it has ended")
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.ended.try_recv().ok().and_then(Result::ok);
        }
        self.status.is_some()
    }

    /// An error, with the end of what it said, unless it still runs.
    pub fn still_runs(&mut self) -> Result<()> {
        if self.status.is_none() {
            match self.ended.try_recv() {
                Ok(status) => self.status = Some(status?),
                Err(_) => return Ok(()),
            }
        }
        check_interrupt()?;
        let (status, name) = (self.status.context("it has ended")?, &self.name);
        match &self.log {
            None => bail!("{name} ended: {status}"),
            Some(log) => bail!(
                "{name} ended: {status}; the end of {}:\n{}",
                log.display(),
                tail(log)
            ),
        }
    }

    /// Waits until `ready` gives something, as long as the process runs and there is time.
    pub fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            self.still_runs()?;
            if began.elapsed() > limit {
                bail!("{} has no {what} after {} s", self.name, limit.as_secs());
            }
            if interrupted_within(Duration::from_millis(20)) {
                bail!("interrupted");
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.status.is_some() || self.ended.try_recv().is_ok() {
            return;
        }
        kill(self.pid as i32, Signal::TERM);
        if self.ended.recv_timeout(Duration::from_secs(10)).is_err() {
            kill(self.pid as i32, Signal::KILL);
            let _ = self.ended.recv_timeout(Duration::from_secs(5));
        }
    }
}

/// The last lines of a file, for an error message.
pub fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_dropped_child_takes_its_own_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("log");
        // The grandchild ignores nothing and would live a minute.
        let mut child = Child::spawn_logged("sh", sh("sleep 60 & echo $!; wait"), &pipe).unwrap();
        let grandchild = child
            .until("line", Duration::from_secs(10), || {
                std::fs::read_to_string(&pipe).ok().filter(|t| t.ends_with('\n'))
            })
            .unwrap();
        let pid = Pid::from_raw(grandchild.trim().parse().unwrap()).unwrap();
        assert!(rustix::process::test_kill_process(pid).is_ok());
        drop(child);
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.map_or(true, |s| s.contains(") Z "))
        };
        let began = Instant::now();
        while !gone() {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "the grandchild lives on"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_early_end_is_told_with_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut child = Child::spawn_logged("server", sh("echo address in use >&2; exit 3"), &log).unwrap();
        let error = child
            .until::<()>("port", Duration::from_secs(10), || None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("server ended: exit status: 3"), "{error}");
        assert!(error.contains("address in use"), "{error}");
    }
}
