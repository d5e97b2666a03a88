//! Child processes that never outlive this one, and the handling of Ctrl-C.

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

/// State shared with the signal handler: it wakes waiting threads and terminates the children.
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

fn lock_state() -> std::sync::MutexGuard<'static, State> {
    // A set of numbers is consistent at any time, also after a panic.
    INTERRUPT.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler for Ctrl-C, SIGTERM and SIGHUP. The first signal terminates the children and wakes the threads
/// that wait for them, so that this process cleans up on its usual way out. The second one kills at once.
pub fn install_signal_handler() -> Result<()> {
    let handler = || {
        let mut state = lock_state();
        let signal = if state.interrupted {
            Signal::KILL
        } else {
            Signal::TERM
        };
        for group in &state.groups {
            signal_group(*group, signal);
        }
        if state.interrupted {
            std::process::exit(130);
        }
        state.interrupted = true;
        INTERRUPT.changed.notify_all();
    };
    ctrlc::set_handler(handler).context("listening for Ctrl-C")
}

/// Waits this long, or until a signal. Returns whether there was one.
pub fn wait_for_interrupt(time: Duration) -> bool {
    let wait = INTERRUPT
        .changed
        .wait_timeout_while(lock_state(), time, |state| !state.interrupted);
    wait.unwrap_or_else(PoisonError::into_inner).0.interrupted
}

/// Fails after a signal, so that `?` ends the current work.
pub fn check_interrupt() -> Result<()> {
    if lock_state().interrupted {
        bail!("interrupted");
    }
    Ok(())
}

/// Terminates all children that still run, before this process exits.
pub fn terminate_children() {
    for group in &lock_state().groups {
        signal_group(*group, Signal::TERM);
    }
}

fn signal_group(group: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(group) {
        // Fails when the group has ended already.
        let _ = kill_process_group(pid, signal);
    }
}

/// A process in a group of its own, terminated together with its descendants when dropped.
pub struct Child {
    name: String,
    pid: u32,
    ended: mpsc::Receiver<std::io::Result<ExitStatus>>,
    status: Option<ExitStatus>,
    log: Option<PathBuf>,
    /// Its stdout, when piped.
    pub stdout: Option<std::process::ChildStdout>,
    /// Its stderr, when piped.
    pub stderr: Option<std::process::ChildStderr>,
}

impl Child {
    /// Starts a process.
    pub fn spawn(name: &str, mut command: Command) -> Result<Self> {
        check_interrupt()?;
        let mut state = lock_state();
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
            // The id of a reaped process may be reused.
            lock_state().groups.remove(&(pid as i32));
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

    /// Starts a process with stdout and stderr in a log file.
    pub fn spawn_logged(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        command.stdout(file.try_clone()?).stderr(file);
        Self::spawn_with_log(name, command, log)
    }

    /// Starts a process with stderr in a log file. Its stdout is that of the command.
    pub fn spawn_logging_stderr(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        command.stderr(file);
        Self::spawn_with_log(name, command, log)
    }

    fn spawn_with_log(name: &str, command: Command, log: &Path) -> Result<Self> {
        let mut child = Self::spawn(name, command)?;
        child.log = Some(log.to_owned());
        Ok(child)
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the process exits by itself.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        if self.status.is_none() {
            self.status = Some(self.ended.recv().context("the waiting thread ended")??);
        }
        self.status.context("it has ended")
    }

    /// Returns whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.ended.try_recv().ok().and_then(Result::ok);
        }
        self.status.is_some()
    }

    /// Fails, with the last lines of its log, when the process has exited.
    pub fn check_running(&mut self) -> Result<()> {
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
                read_tail(log)
            ),
        }
    }

    /// Polls `ready` until it returns a value. Fails when the process exits or the time is over.
    pub fn wait_until<T>(
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
            self.check_running()?;
            if began.elapsed() > limit {
                bail!("{} has no {what} after {} s", self.name, limit.as_secs());
            }
            if wait_for_interrupt(Duration::from_millis(20)) {
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
        signal_group(self.pid as i32, Signal::TERM);
        if self.ended.recv_timeout(Duration::from_secs(10)).is_err() {
            signal_group(self.pid as i32, Signal::KILL);
            let _ = self.ended.recv_timeout(Duration::from_secs(5));
        }
    }
}

/// Reads the last lines of a file, for an error message.
pub fn read_tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Returns the command of a shell script, for tests of processes.
#[cfg(test)]
pub fn shell_command(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_child_terminates_its_descendants() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("log");
        // The grandchild would live a minute.
        let mut child = Child::spawn_logged("sh", shell_command("sleep 60 & echo $!; wait"), &pipe).unwrap();
        let grandchild = child
            .wait_until("line", Duration::from_secs(10), || {
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
    fn early_exit_is_reported_with_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut child =
            Child::spawn_logged("server", shell_command("echo address in use >&2; exit 3"), &log).unwrap();
        let error = child
            .wait_until::<()>("port", Duration::from_secs(10), || None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("server ended: exit status: 3"), "{error}");
        assert!(error.contains("address in use"), "{error}");
    }
}
