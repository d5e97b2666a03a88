//! Progress on stderr: a spinner per step on a terminal, lines elsewhere.
//!
//! Without a terminal (a CI log, a pipe) each step prints a line when it begins and ends, and one per
//! [`REPORT_INTERVAL`] in between, so that a build of minutes does not look like a hang.

use std::{
    fmt::Display,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Interval of the lines about a step that is still running, where there is no terminal.
const REPORT_INTERVAL: Duration = Duration::from_secs(20);

static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// A task that takes a while. It counts as failed unless [`BuildStep::finish`] is called before it is dropped.
pub struct BuildStep {
    name: String,
    began: Instant,
    bar: ProgressBar,
    reporter: Option<Reporter>,
    ended: bool,
}

impl BuildStep {
    /// Begins a step.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = BARS.add(ProgressBar::new_spinner());
        let style = ProgressStyle::with_template("{spinner:.cyan} {prefix} {elapsed:.dim} {wide_msg:.dim}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(name.clone());
        bar.enable_steady_tick(Duration::from_millis(100));
        let mut reporter = None;
        if bar.is_hidden() {
            print_status(&format!("… {name}"));
            reporter = Some(Reporter::start(&name, REPORT_INTERVAL, print_status));
        }
        Self {
            name,
            began: Instant::now(),
            bar,
            reporter,
            ended: false,
        }
    }

    /// Sets the text about the current part of the step, such as the crate being compiled.
    pub fn set_status(&self, status: impl Into<String>) {
        let status = status.into();
        if let Some(reporter) = &self.reporter {
            reporter.set_status(&status);
        }
        self.bar.set_message(status);
    }

    /// Ends the step as successful and prints its name, a summary and the time it took.
    pub fn finish(mut self, summary: impl Display) {
        let seconds = self.began.elapsed().as_secs_f64();
        let summary = summary.to_string();
        let colon = if summary.is_empty() { "" } else { ": " };
        self.end(&format!("✔ {}{colon}{summary} ({seconds:.1} s)", self.name));
    }

    fn end(&mut self, line: &str) {
        self.ended = true;
        self.reporter = None;
        self.bar.finish_and_clear();
        print_status(line);
    }
}

impl Drop for BuildStep {
    fn drop(&mut self) {
        if !self.ended {
            self.end(&format!("✘ {}", self.name));
        }
    }
}

/// A thread that prints a line about a running step at intervals, until it is dropped.
struct Reporter {
    status: Arc<Mutex<String>>,
    // Dropping the sender ends the thread.
    _stop: mpsc::Sender<()>,
}

impl Reporter {
    fn start(name: &str, interval: Duration, print: impl Fn(&str) + Send + 'static) -> Self {
        let status = Arc::new(Mutex::new(String::new()));
        let (stop, stopped) = mpsc::channel();
        let (name, shared) = (name.to_owned(), status.clone());
        thread::spawn(move || {
            let began = Instant::now();
            while stopped.recv_timeout(interval) == Err(mpsc::RecvTimeoutError::Timeout) {
                let seconds = began.elapsed().as_secs();
                let status = lock(&shared).clone();
                let colon = if status.is_empty() { "" } else { ": " };
                print(&format!("… {name}{colon}{status} ({seconds} s so far)"));
            }
        });
        Self { status, _stop: stop }
    }

    fn set_status(&self, status: &str) {
        status.clone_into(&mut lock(&self.status));
    }
}

fn lock(status: &Mutex<String>) -> MutexGuard<'_, String> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a bar below the running steps.
pub fn add_bar(bar: ProgressBar) -> ProgressBar {
    BARS.add(bar)
}

/// Prints a line for people on stderr, above the bars.
pub fn print_status(line: &str) {
    BARS.suspend(|| eprintln!("{line}"));
}

/// Prints a line of the result on stdout, above the bars.
pub fn print_result(line: &str) {
    BARS.suspend(|| println!("{line}"));
}

/// Removes all bars from the terminal.
pub fn clear_bars() {
    // Fails when the terminal is gone, and then there is nothing to clear.
    let _ = BARS.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_without_terminal_reports_its_status_at_intervals() {
        let (sender, lines) = mpsc::channel();
        let print = move |line: &str| drop(sender.send(line.to_owned()));
        let reporter = Reporter::start("Building the host", Duration::from_millis(5), print);
        let first = lines.recv().expect("a line before any status");
        assert!(first.starts_with("… Building the host ("), "{first}");
        reporter.set_status("Compiling kube");
        let expected = "… Building the host: Compiling kube (";
        assert!(lines.iter().take(1000).any(|line| line.starts_with(expected)));
        // The channel closes when the thread ends.
        drop(reporter);
        while lines.recv().is_ok() {}
    }
}
