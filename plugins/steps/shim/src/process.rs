//! Runs one process as an init process has to: signals are forwarded to its group, and orphans are reaped.

use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Access, access},
    process::{Pid, Signal, WaitOptions, WaitStatus, getpid, getuid, kill_process, kill_process_group, wait},
};
use signal_hook::{consts, iterator::Signals};
use steps_protocol::{ErrorReason, ProcessConfig, RunConfig};

use crate::{tail::Tail, user};

/// Signals that are forwarded to the process.
const FORWARDED_SIGNALS: [(i32, Signal); 7] = [
    (consts::SIGTERM, Signal::TERM),
    (consts::SIGINT, Signal::INT),
    (consts::SIGHUP, Signal::HUP),
    (consts::SIGQUIT, Signal::QUIT),
    (consts::SIGUSR1, Signal::USR1),
    (consts::SIGUSR2, Signal::USR2),
    (consts::SIGWINCH, Signal::WINCH),
];

/// Time that the log has to arrive after the end of the process. A process that left the group may keep the pipe open.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that processes have to end that were killed. One that waits for a disk may take longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The end of a process.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code: 128 plus the number for a signal.
    pub exit_code: i32,
    /// Number of the signal.
    pub signal: Option<i32>,
    /// True if the process exceeded its timeout.
    pub timed_out: bool,
    /// True if SIGTERM was forwarded to it.
    pub stopped: bool,
}

/// An event in the loop of [`supervise`].
enum Event {
    Signal(i32),
    Drained,
}

/// Runs the process to its end.
pub fn run(config: &RunConfig, tail: &Tail) -> Result<Ended, (ErrorReason, String)> {
    // Before the process starts: a SIGTERM in between must reach it.
    let mut numbers: Vec<i32> = FORWARDED_SIGNALS.iter().map(|(number, _)| *number).collect();
    numbers.push(consts::SIGCHLD);
    let signals = Signals::new(numbers).map_err(|error| (ErrorReason::ConfigInvalid, error.to_string()))?;
    let mut child = spawn(&config.process, &config.root)?;
    let (sender, events) = mpsc::channel();
    forward(signals, sender.clone());
    let copies = copy_log(&mut child, tail, &sender);
    supervise(config, &child, &events, copies)
        .map_err(|error| (ErrorReason::ConfigInvalid, error.to_string()))
}

fn spawn(process: &ProcessConfig, root: &str) -> Result<Child, (ErrorReason, String)> {
    let mut command = Command::new(&process.path);
    command
        .args(&process.args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.process_group(0);
    if let Some(dir) = &process.dir {
        // A failed chdir has the same error as a missing executable.
        if !Path::new(dir).is_dir() {
            let message = format!(
                "The working directory {dir} does not exist in the container: create it in the image, or \
                                   set spec.process.dir to an input or output."
            );
            return Err((ErrorReason::DirectoryNotFound, message));
        }
        command.current_dir(dir);
    }
    if is_without_home(Path::new("/"))
        && let Some(home) = create_home(root)
    {
        command.env("HOME", home);
    }
    if let Some(name) = &process.user {
        change_user(&mut command, name)?;
    }
    command.spawn().map_err(|error| {
        let path = &process.path;
        match error.kind() {
            io::ErrorKind::NotFound => {
                let message = format!(
                    "The command {path} does not exist in the image, or its interpreter does not: check \
                     spec.process.path and spec.image."
                );
                (ErrorReason::CommandNotFound, message)
            }
            _ => {
                let message = format!(
                    "The command {path} cannot be executed ({error}): it must be an executable file for this platform."
                );
                (ErrorReason::CommandNotExecutable, message)
            }
        }
    })
}

/// Returns whether there is no home directory: container runtimes name `/` for a user that `/etc/passwd` of the image does not list,
/// where only root can write. Compilers and package managers fail without one.
fn is_without_home(filesystem_root: &Path) -> bool {
    let is_root = std::env::var_os("HOME").is_none_or(|home| home == "/");
    is_root && access(filesystem_root, Access::WRITE_OK).is_err()
}

/// Creates a home directory in the shared volume, which ends with the pod. Without one the process may still succeed.
fn create_home(root: &str) -> Option<PathBuf> {
    let home = Path::new(root).join("home");
    fs::create_dir_all(&home).ok().map(|()| home)
}

fn change_user(command: &mut Command, name: &str) -> Result<(), (ErrorReason, String)> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = user::find(&passwd, name).ok_or_else(|| {
        let message =
            format!("The user {name} is not in /etc/passwd of the image: set spec.process.user to a number.");
        (ErrorReason::UserNotUsable, message)
    })?;
    if let Some(home) = &user.home
        && std::env::var_os("HOME").is_none_or(|home| home == "/")
    {
        command.env("HOME", home);
    }
    let own = getuid();
    if own.as_raw() == user.uid {
        return Ok(());
    }
    if !own.is_root() {
        let message = format!(
            "The process cannot run as {name}: the container runs as user {} and may not change it. Set \
             spec.securityContext.runAsUser to {}.",
            own.as_raw(),
            user.uid
        );
        return Err((ErrorReason::UserNotUsable, message));
    }
    // The kernel refuses it to root without capabilities, which the container has none of by default.
    if !user::may_change(&fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        let message = format!(
            "The process cannot run as {name}: the container runs as root without the capabilities to change that. Set \
             spec.securityContext.runAsUser to {} and runAsGroup to {}.",
            user.uid, user.gid
        );
        return Err((ErrorReason::UserNotUsable, message));
    }
    command.uid(user.uid).gid(user.gid);
    Ok(())
}

fn forward(mut signals: Signals, events: mpsc::Sender<Event>) {
    thread::spawn(move || {
        for number in signals.forever() {
            if events.send(Event::Signal(number)).is_err() {
                return;
            }
        }
    });
}

/// Copies what the process writes, and returns the number of copies that end with [`Event::Drained`].
fn copy_log(child: &mut Child, tail: &Tail, events: &mpsc::Sender<Event>) -> usize {
    let mut copies = 0;
    if let Some(from) = child.stdout.take() {
        let (tail, events) = (tail.clone(), events.clone());
        thread::spawn(move || {
            tail.copy(from, io::stdout());
            let _ = events.send(Event::Drained);
        });
        copies += 1;
    }
    if let Some(from) = child.stderr.take() {
        let (tail, events) = (tail.clone(), events.clone());
        thread::spawn(move || {
            tail.copy(from, io::stderr());
            let _ = events.send(Event::Drained);
        });
        copies += 1;
    }
    copies
}

/// Waits for the end of the process.
fn supervise(
    config: &RunConfig,
    child: &Child,
    events: &mpsc::Receiver<Event>,
    mut copies: usize,
) -> io::Result<Ended> {
    let group = Pid::from_child(child);
    let grace = Duration::from_secs(config.grace_seconds);
    let mut deadline = config
        .timeout_seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (mut timed_out, mut stopped) = (false, false);
    let status = loop {
        // Several deaths may have come as one signal, and one before the handler waited.
        if let Some(status) = reap(group)? {
            break status;
        }
        match receive(events, deadline) {
            Ok(Event::Signal(consts::SIGCHLD)) => {}
            Ok(Event::Signal(number)) => {
                let forwarded = FORWARDED_SIGNALS.iter().find(|(known, _)| *known == number);
                stopped |= number == consts::SIGTERM;
                if let Some((_, signal)) = forwarded {
                    send(group, *signal);
                }
            }
            Ok(Event::Drained) => copies -= 1,
            Err(_) if timed_out => {
                send(group, Signal::KILL);
                deadline = None;
            }
            Err(_) => {
                timed_out = true;
                send(group, Signal::TERM);
                deadline = Some(Instant::now() + grace);
            }
        }
    };
    // Processes that it left behind would go on writing to the outputs while they are packed.
    send(group, Signal::KILL);
    if getpid().as_raw_nonzero().get() == 1 {
        kill_others();
    }
    let deadline = Instant::now() + LOG_TIMEOUT;
    while copies > 0 {
        match receive(events, Some(deadline)) {
            Ok(Event::Drained) => copies -= 1,
            Ok(Event::Signal(_)) => {}
            Err(_) => break,
        }
    }
    let signal = status.terminating_signal();
    let exit_code = status
        .exit_status()
        .or(signal.map(|signal| 128 + signal))
        .unwrap_or(1);
    Ok(Ended {
        exit_code,
        signal,
        timed_out,
        stopped,
    })
}

fn receive(events: &mpsc::Receiver<Event>, deadline: Option<Instant>) -> Result<Event, RecvTimeoutError> {
    match deadline {
        Some(deadline) => events.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// Reaps all that have ended, and returns the status of the process if it is among them.
fn reap(process: Pid) -> io::Result<Option<WaitStatus>> {
    let mut found = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == process => found = Some(status),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(found),
            // No children are left.
            Err(rustix::io::Errno::CHILD) => return Ok(found),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn send(group: Pid, signal: Signal) {
    // A group that has ended already needs none.
    let _ = kill_process_group(group, signal);
}

/// Ends every other process of the container and reaps it; only as its init process, which inherits all of them.
fn kill_others() {
    let deadline = Instant::now() + KILL_TIMEOUT;
    // Again and again: a process may have forked before it was killed.
    while Instant::now() < deadline {
        let _ = kill_all();
        match wait(WaitOptions::NOHANG) {
            Err(rustix::io::Errno::CHILD) => return,
            Ok(Some(_)) => {}
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Sends SIGKILL to every other process.
fn kill_all() -> io::Result<()> {
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|pid| *pid != getpid()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    Ok(())
}
