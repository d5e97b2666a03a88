//! What is being done, on stderr: a spinner per step on a terminal, plain lines elsewhere.

use std::{
    fmt::Display,
    sync::LazyLock,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

static SCREEN: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Something that takes a while; ends as failed unless [`Step::done`].
pub struct Step {
    name: String,
    began: Instant,
    bar: ProgressBar,
    ended: bool,
}

impl Step {
    /// Begins a step.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = SCREEN.add(ProgressBar::new_spinner());
        let style = ProgressStyle::with_template("{spinner:.cyan} {prefix} {elapsed:.dim} {wide_msg:.dim}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(name.clone());
        bar.enable_steady_tick(Duration::from_millis(100));
        if bar.is_hidden() {
            eprintln!("… {name}");
        }
        Self {
            name,
            began: Instant::now(),
            bar,
            ended: false,
        }
    }

    /// What it is at.
    pub fn at(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// It is done, with this to say.
    pub fn done(mut self, what: impl Display) {
        let took = self.began.elapsed().as_secs_f64();
        self.end(&format!("✔ {} {what} ({took:.1} s)", self.name));
    }

    fn end(&mut self, line: &str) {
        self.ended = true;
        self.bar.finish_and_clear();
        say(line);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.ended {
            self.end(&format!("✘ {}", self.name));
        }
    }
}

/// A bar among the steps.
pub fn add(bar: ProgressBar) -> ProgressBar {
    SCREEN.add(bar)
}

/// A line on stderr, above whatever is in progress.
pub fn say(line: &str) {
    SCREEN.suspend(|| eprintln!("{line}"));
}

/// A line on stdout, above whatever is in progress.
pub fn print(line: &str) {
    SCREEN.suspend(|| println!("{line}"));
}

/// Takes everything in progress off the terminal.
pub fn clear() {
    // Fails when the terminal is gone; then nobody looks.
    let _ = SCREEN.clear();
}
