//! A subject's process, and its resource usage from /proc.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// A process that is killed when dropped.
pub struct SubjectProcess {
    name: String,
    pid: u32,
    child: Child,
}

/// Resource usage of a process so far.
#[derive(Clone, Copy, Debug)]
pub struct ResourceUsage {
    /// CPU seconds of all threads, in user and kernel mode.
    pub cpu_seconds: f64,
    /// Resident memory in bytes.
    pub rss: u64,
    /// Anonymous part of it, without the pages of its binary.
    pub rss_anon: u64,
    /// Peak of the resident memory in bytes.
    pub rss_peak: u64,
}

impl SubjectProcess {
    /// Starts a process with its output in a log file.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        let pid = child.id().context("it has just been started")?;
        Ok(Self {
            name: name.into(),
            pid,
            child,
        })
    }

    /// Reads its resource usage.
    pub fn read_usage(&self) -> Result<ResourceUsage> {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{}/{file}", self.pid))
                .with_context(|| format!("{} has ended", self.name))
        };
        let (stat, status) = (read("stat")?, read("status")?);
        // The second field may contain spaces and ends with a parenthesis.
        let fields: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split_ascii_whitespace()
            .collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok());
        let (user, system) = ticks(11).zip(ticks(12)).context("no times in /proc/PID/stat")?;
        Ok(ResourceUsage {
            cpu_seconds: (user + system) as f64 / rustix::param::clock_ticks_per_second() as f64,
            rss: parse_bytes(&status, "VmRSS:")?,
            rss_anon: parse_bytes(&status, "RssAnon:")?,
            rss_peak: parse_bytes(&status, "VmHWM:")?,
        })
    }

    /// Reads its proportional set size in bytes: resident pages that it shares with others, such as those of a binary, are
    /// divided among them.
    pub fn read_pss(&self) -> Result<u64> {
        let file = format!("/proc/{}/smaps_rollup", self.pid);
        let rollup = fs::read_to_string(&file).with_context(|| format!("{} has ended", self.name))?;
        parse_bytes(&rollup, "Pss:")
    }

    /// Waits until the process uses less than a twentieth of a core for a second.
    pub async fn wait_idle(&self, limit: Duration) -> Result<()> {
        let began = Instant::now();
        let mut before = self.read_usage()?.cpu_seconds;
        loop {
            // The rate is measured over this interval.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.read_usage()?.cpu_seconds;
            if now - before < 0.05 {
                return Ok(());
            }
            before = now;
            if began.elapsed() > limit {
                bail!("{} is not idle after {} s", self.name, limit.as_secs());
            }
        }
    }

    /// Fails when the process has exited.
    pub fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended: {status}", self.name),
        }
    }

    /// Sends a signal.
    pub fn send_signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid.cast_signed()).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Terminates the process, and kills it when that takes too long.
    pub async fn terminate(mut self) -> Result<()> {
        // Fails when the process has exited by itself.
        let _ = self.send_signal(Signal::TERM);
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait())
            .await
            .is_err()
        {
            self.child.kill().await?;
        }
        Ok(())
    }
}

/// Parses the bytes of a line of a file in /proc, which has them in KiB.
fn parse_bytes(text: &str, key: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no {key} in /proc"))? * 1024)
}
