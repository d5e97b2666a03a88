//! Processes that end with the test process.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A process that is killed when it is dropped, and also when the test process is killed: then the standard input of
/// `guard`, a shell that waits for its end, is closed by the kernel.
pub struct BoundProcess {
    child: Child,
    guard: Child,
}

impl BoundProcess {
    /// Starts a process, and appends its output to a log.
    pub fn spawn(mut command: Command, log: &Path) -> Self {
        let output = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log");
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a log"))
            .stderr(output)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", command.get_program().display()));
        // Ctrl-C at the terminal reaches the guard, too, and must not end it before it has done its work.
        let guard = Command::new("sh")
            .args(["-c", "trap '' INT TERM HUP; read -r _; kill -9 \"$0\""])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        Self { child, guard }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn send_signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// True while the process has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

impl Drop for BoundProcess {
    fn drop(&mut self) {
        // The guard first: it must not kill another process that gets the id of this one.
        for process in [&mut self.guard, &mut self.child] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
